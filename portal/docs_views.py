"""The API's description of itself: the OpenAPI document and a browser for it, from our own host (CSP)."""

from __future__ import annotations

from drf_spectacular.renderers import OpenApiJsonRenderer2
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from portal.permissions import PUBLIC


class Document(SpectacularAPIView):
    """OpenAPI 3.1 as JSON, the same for everyone."""

    scopes = {"GET": PUBLIC}
    authentication_classes = ()
    renderer_classes = [OpenApiJsonRenderer2]


class Browser(SpectacularSwaggerSplitView):
    """Swagger UI; its script is a second answer of this address, since the CSP allows no inline script."""

    scopes = {"GET": PUBLIC}
    authentication_classes = ()
    url_name = "openapi"
    template_name = "access/api_docs.html"
