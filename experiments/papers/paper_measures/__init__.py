"""What the four papers measure: their summaries of runs, FedGBO's costs, FedLGA's approximation."""
