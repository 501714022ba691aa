"""The code of flwr's actors; it is a module, so that they import it instead of receiving it."""

import functools
from types import SimpleNamespace

import torch
import work
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch_model import Network, batch_loss, client_tensors

app = ClientApp()


@functools.cache
def resident(name, cohort, check):
    """The model and all clients' tensors, made once for each actor."""
    torch.set_num_threads(1)
    given = SimpleNamespace(work=name, cohort=cohort, check=check)
    return Network(name), client_tensors(given)


@app.train()
def train(message: Message, context: Context):
    """One epoch over one client's examples, by torch.optim.SGD."""
    config = message.content["config"]
    model, clients = resident(config["work"], config["cohort"], config["check"])
    images, labels = clients[int(context.node_config["partition-id"])]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=work.RATE)
    for chosen in torch.randperm(len(labels)).split(work.BATCH):
        optimizer.zero_grad()
        batch_loss(model, images[chosen], labels[chosen]).backward()
        optimizer.step()
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(labels)}),
        }
    )
    return Message(content=content, reply_to=message)
