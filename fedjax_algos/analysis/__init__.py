"""Measures runs: evaluation, costs, diagnostics, pictures and statistics over seeds."""

from typing import TYPE_CHECKING

from fedjax_algos.base.lazy import listed

if TYPE_CHECKING:
    from fedjax_algos.analysis import diagnostics as diagnostics
    from fedjax_algos.analysis import pictures as pictures
    from fedjax_algos.analysis import statistics as statistics
    from fedjax_algos.analysis.costs import ClientMemory as ClientMemory
    from fedjax_algos.analysis.costs import count_flops as count_flops
    from fedjax_algos.analysis.costs import count_memory as count_memory
    from fedjax_algos.analysis.evaluation import ClientSummary as ClientSummary
    from fedjax_algos.analysis.evaluation import make_evaluate as make_evaluate
    from fedjax_algos.analysis.evaluation import make_evaluate_clients as make_evaluate_clients
    from fedjax_algos.analysis.evaluation import summarise_clients as summarise_clients
    from fedjax_algos.analysis.flops import Flops as Flops
    from fedjax_algos.analysis.flops import UncountedError as UncountedError
    from fedjax_algos.analysis.personal_evaluation import EvaluateOwn as EvaluateOwn
    from fedjax_algos.analysis.personal_evaluation import EvaluatePersonal as EvaluatePersonal
    from fedjax_algos.analysis.personal_evaluation import make_evaluate_own as make_evaluate_own
    from fedjax_algos.analysis.personal_evaluation import (
        make_evaluate_personal as make_evaluate_personal,
    )
    from fedjax_algos.analysis.rows import metrics_row as metrics_row
    from fedjax_algos.analysis.summary import MethodSummary as MethodSummary
    from fedjax_algos.analysis.summary import PairedSummary as PairedSummary
    from fedjax_algos.analysis.summary import summarise as summarise
    from fedjax_algos.analysis.summary import summarise_pairs as summarise_pairs
else:
    __all__, __dir__, __getattr__ = listed(__name__)
