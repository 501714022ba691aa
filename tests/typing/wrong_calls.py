"""Wrong calls, one a line, each of which mypy and pyright must report; nothing here is run."""

import numpy as np
from user_code import apply, federated_data, init, loss

import fedjax_algos as fa

problem = fa.Problem(init, apply, loss)
local = fa.Local(batch_size=5, learning_rate=0.05, steps=10)
data = federated_data()
algorithm = fa.algorithms.fedavg(problem, local)
engine = fa.make_engine(algorithm)
state = engine.init(0, fa.Population(10, 4, 100))
executor = fa.make_executor(algorithm)

# an unknown option
fa.algorithms.fedprox(problem, local, nu=0.1)  # wrong
fa.models.mlp((64,), 10, depth=3)  # wrong
fa.data.partitioning.dirichlet(np.zeros(9), 3, 0, alhpa=0.3)  # wrong
fa.Local(batch_size=5, learning_rate=0.05, step=10)  # wrong
fa.simulate(engine, data, cohort_size=4, rounds=2, sedd=1)  # wrong
fa.asynchrony.compass(minimum=5)  # wrong
fa.sweep("fedprox", problem, local, data, grid={}, cohort_size=4, rounds=2, cohort=3)  # wrong
fa.iterate_rounds(engine, data, cohort_size=4, rounds=2, start=1)  # wrong
print(state.sever)  # wrong

# a wrong type
fa.algorithms.fedprox(problem, local, mu="small")  # wrong
fa.algorithms.fedavg(problem, local, weighting="sizes")  # wrong
fa.algorithms.fedavg(local, problem)  # wrong
fa.make_engine(problem)  # wrong
fa.make_engine(algorithm, client_state="disk")  # wrong
engine.init("zero", fa.Population(10, 4, 100))  # wrong
engine.round(state, data, [0, 1, 2])  # wrong
fa.simulate(executor, data, cohort_size=4, rounds=2)  # wrong
fa.Local(batch_size=5, learning_rate=0.05, steps=10, batches="feeder")  # wrong

# a missing argument
fa.algorithms.ghbm(problem, local)  # wrong
fa.simulate(engine, data, rounds=2)  # wrong
fa.simulate_async(executor, data, fa.asynchrony.immediate(steps=5))  # wrong
fa.Problem(init, apply)  # wrong
