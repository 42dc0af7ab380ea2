from fedlgd.cli import main

main()
