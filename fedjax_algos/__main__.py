from fedjax_algos.cli import main

main()
