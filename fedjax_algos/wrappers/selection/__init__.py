"""Who of the candidates of a round is chosen, by what they report or what is known of them."""
