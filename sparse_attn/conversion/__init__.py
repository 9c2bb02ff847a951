"""A pretrained model made sparse at little loss, which `sparse_attn.convert` does."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparse_attn.conversion.converting import convert
    from sparse_attn.conversion.plan import Plan

__all__ = ["Plan", "convert"]

if not TYPE_CHECKING:  # a type checker would take any name for one of these

    def __getattr__(name: str) -> Any:
        """Import a public name when it is asked for: the options of the command need none."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from sparse_attn.conversion import converting

        return getattr(converting, name)
