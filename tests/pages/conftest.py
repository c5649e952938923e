from tests.people import browse, make_user

__all__ = ["browse", "make_user"]
