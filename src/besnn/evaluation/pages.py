"""HTML pages from the package's templates: self-contained, nothing in them is fetched or run.

Styles are inline, figures embedded, and a content security policy forbids the rest. Every text that comes from
outside (class names, file names, provenance) is escaped by the template engine.
"""

from jinja2 import Environment, PackageLoader, StrictUndefined

from besnn.evaluation.wording import percent

_TEMPLATES = Environment(
    loader=PackageLoader("besnn.evaluation"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters["percent"] = percent


def render_page(template: str, **context: object) -> str:
    """A template of ``templates/``, filled in.

    >>> render_page("page.html.j2").splitlines()[:2]
    ['<!doctype html>', '<html lang="en">']
    """
    return _TEMPLATES.get_template(template).render(**context)
