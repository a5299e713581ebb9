"""The command line, one file a verb. main.py names them and imports a verb's file only when it is called."""
