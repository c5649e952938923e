from tests.people import browse, dial, listen, make_user

__all__ = ["browse", "dial", "listen", "make_user"]
