"""A round written by hand in PyTorch.

COMMAND   python benchmarks/peers/run_torch.py --work cnn --cohort 50 --rounds 5 --threads 2
          python benchmarks/peers/run_torch.py --processes 2 --threads 1

One model trains every client in turn, by in-place SGD on its params; the sum of the trained params
is kept in place, too. With several processes, each has a share of the clients, and gloo adds the
sums.
"""

import torch
import torch.multiprocessing
import work
from torch_model import batch_loss, client_tensors, layers_of, make_model


def run(rank, given):
    torch.set_num_threads(given.threads)
    if given.processes > 1:
        # a file that all processes share, in the folder that `main` makes
        store = torch.distributed.FileStore(given.store, given.processes)
        torch.distributed.init_process_group(
            "gloo", store=store, rank=rank, world_size=given.processes
        )
    all_clients = client_tensors(given)
    clients = all_clients[rank :: given.processes]
    examples = sum(len(y) for _, y in all_clients)

    clock = work.Clock()
    model = make_model(given.work)
    params = list(model.parameters())
    for _ in range(given.rounds):
        start = [param.detach().clone() for param in params]
        total = [torch.zeros_like(param) for param in start]
        for images, labels in clients:
            with torch.no_grad():
                torch._foreach_copy_(params, start)
            order = torch.randperm(len(labels))
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
        clock.lap()
    if rank == 0:
        work.report(given, clock, layers_of(model), version=torch.__version__)
    if given.processes > 1:
        torch.distributed.destroy_process_group()


def main():
    given = work.arguments(threads=torch.get_num_threads(), processes=1, store="")
    if given.processes == 1:
        run(0, given)
    else:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            given.store = f"{folder}/store"
            torch.multiprocessing.spawn(run, (given,), nprocs=given.processes)


if __name__ == "__main__":
    main()
