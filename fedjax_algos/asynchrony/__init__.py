"""Training on a virtual clock: when clients are dispatched, and which updates make a server step.

A system model says how long clients take and when they are unavailable; a planner plans a run in
that system before any training. `planners` and `system_models` hold the factories by name.
"""

from fedjax_algos.asynchrony.compass import CompassTrace as CompassTrace
from fedjax_algos.asynchrony.compass import compass as compass
from fedjax_algos.asynchrony.plan import EventLoop as EventLoop
from fedjax_algos.asynchrony.plan import Plan as Plan
from fedjax_algos.asynchrony.plan import plan_dispatches as plan_dispatches
from fedjax_algos.asynchrony.planning import Planner as Planner
from fedjax_algos.asynchrony.planning import barrier as barrier
from fedjax_algos.asynchrony.planning import buffered as buffered
from fedjax_algos.asynchrony.planning import check_asynchronous as check_asynchronous
from fedjax_algos.asynchrony.planning import check_planner as check_planner
from fedjax_algos.asynchrony.planning import immediate as immediate
from fedjax_algos.asynchrony.planning import planners as planners
from fedjax_algos.asynchrony.planning import tiers as tiers
from fedjax_algos.asynchrony.planning import tiers_of as tiers_of
from fedjax_algos.participation.in_rounds import in_session as in_session
from fedjax_algos.participation.in_rounds import late as late
from fedjax_algos.participation.systems.fedscale import fedscale as fedscale
from fedjax_algos.participation.systems.simulated import simulated as simulated
from fedjax_algos.participation.systems.system_model import FixedSystem as FixedSystem
from fedjax_algos.participation.systems.system_model import SystemModel as SystemModel
from fedjax_algos.participation.systems.system_model import SystemModelFactory as SystemModelFactory
from fedjax_algos.participation.systems.system_model import (
    SystemModelWithSessions as SystemModelWithSessions,
)
from fedjax_algos.participation.systems.system_model import (
    SystemModelWithSpeeds as SystemModelWithSpeeds,
)
from fedjax_algos.participation.systems.system_model import csv as csv
from fedjax_algos.participation.systems.system_model import system_models as system_models
from fedjax_algos.participation.systems.system_model import system_of as system_of
from fedjax_algos.participation.systems.system_model import traced as traced
