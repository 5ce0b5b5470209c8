from .command import program

program()
