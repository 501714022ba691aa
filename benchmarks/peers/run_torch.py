"""A round written by hand in PyTorch.

COMMAND   python benchmarks/peers/run_torch.py --work cnn --cohort 50 --rounds 5 --threads 2
          python benchmarks/peers/run_torch.py --processes 2 --threads 1
          python benchmarks/peers/run_torch.py --device cuda --mapped 1

One model trains every client in turn, by in-place SGD on its params; the sum of the trained params
is kept in place, too. With several processes, each has a share of the clients, and gloo adds the
sums. With `--mapped 1` all clients train at once: their params are stacked, and `torch.func.vmap`
maps a step over them.
"""

import torch
import torch.multiprocessing
import work
from torch_model import batch_loss, client_tensors, layers_of, make_model


def mapped_rounds(given, model, clients, clock):
    """Rounds of all clients at once; the last params are the model's."""
    images, labels = (torch.stack(part) for part in zip(*clients, strict=True))
    rows = torch.arange(len(clients), device=images.device)[:, None]
    params = {name: param.detach() for name, param in model.named_parameters()}

    def step(params, images, labels):
        def loss(params):
            outputs = torch.func.functional_call(model, params, (images,))
            return torch.nn.functional.cross_entropy(outputs, labels)

        gradients = torch.func.grad(loss)(params)
        return {name: params[name] - work.RATE * gradients[name] for name in params}

    step_of_all = torch.func.vmap(step)
    for _ in range(given.rounds):
        stacked = {name: p.expand(len(clients), *p.shape).clone() for name, p in params.items()}
        order = torch.stack([torch.randperm(labels.shape[1]) for _ in clients]).to(images.device)
        for chosen in order.split(work.BATCH, 1):
            stacked = step_of_all(stacked, images[rows, chosen], labels[rows, chosen])
        params = {name: each.mean(0) for name, each in stacked.items()}
        lap(given, clock)
    with torch.no_grad():
        for name, param in model.named_parameters():
            param.copy_(params[name])


def lap(given, clock):
    """Ends a lap when the device has finished."""
    if given.device != "cpu":
        torch.cuda.synchronize()
    clock.lap()


def run(rank, given):
    torch.set_num_threads(given.threads)
    if given.processes > 1:
        # a file that all processes share, in the folder that `main` makes
        store = torch.distributed.FileStore(given.store, given.processes)
        torch.distributed.init_process_group(
            "gloo", store=store, rank=rank, world_size=given.processes
        )
    all_clients = [(x.to(given.device), y.to(given.device)) for x, y in client_tensors(given)]
    clients = all_clients[rank :: given.processes]
    examples = sum(len(y) for _, y in all_clients)

    clock = work.Clock()
    model = make_model(given.work).to(given.device)
    params = list(model.parameters())
    if given.mapped:
        mapped_rounds(given, model, all_clients, clock)
    for _ in range(0 if given.mapped else given.rounds):
        start = [param.detach().clone() for param in params]
        total = [torch.zeros_like(param) for param in start]
        for images, labels in clients:
            with torch.no_grad():
                torch._foreach_copy_(params, start)
            order = torch.randperm(len(labels), device=labels.device)
            for chosen in order.split(work.BATCH):
                loss = batch_loss(model, images[chosen], labels[chosen])
                gradients = torch.autograd.grad(loss, params)
                with torch.no_grad():
                    torch._foreach_add_(params, gradients, alpha=-work.RATE)
            torch._foreach_add_(total, [p.detach() for p in params], alpha=len(labels))
        if given.processes > 1:
            flat = torch.cat([leaf.flatten() for leaf in total])
            torch.distributed.all_reduce(flat)
            pieces = flat.split([leaf.numel() for leaf in total])
            total = [piece.view_as(leaf) for piece, leaf in zip(pieces, total, strict=True)]
        torch._foreach_mul_(total, 1 / examples)
        with torch.no_grad():
            torch._foreach_copy_(params, total)
        lap(given, clock)
    if rank == 0:
        layers = layers_of(model.cpu())
        work.report(given, clock, layers, version=torch.__version__, device=given.device)
    if given.processes > 1:
        torch.distributed.destroy_process_group()


def main():
    given = work.arguments(
        threads=torch.get_num_threads(), processes=1, store="", device="cpu", mapped=0
    )
    if given.processes == 1:
        run(0, given)
    else:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            given.store = f"{folder}/store"
            torch.multiprocessing.spawn(run, (given,), nprocs=given.processes)


if __name__ == "__main__":
    main()
