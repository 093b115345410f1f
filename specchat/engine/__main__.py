"""`python -m specchat.engine`: an engine without the command line's packages, for machines that have only torch."""

from specchat.engine.server.host import serve

if __name__ == "__main__":
    serve()
