"""Every route of the portal. Apps bring ``urls`` (pages), ``api_urls`` (/api/v1/) and ``node_urls`` (/api/node/v1/)."""

from allauth.account.views import password_reset_from_key
from django.conf import settings
from django.contrib import admin
from django.urls import include, path, re_path

from portal.language import set_language
from portal.states_page import StatesPage

handler400 = "portal.views.bad_request"
handler403 = "portal.views.permission_denied"
handler404 = "portal.views.not_found"
handler429 = "portal.login_limits.too_many"  # allauth's name and call, not Django's
handler500 = "portal.views.server_error"

urlpatterns = [
    path("", include("portal.page_urls")),
    path("", include("portal.tenant_urls")),
    path("", include("rental.urls")),
    path("billing/", include("billing.urls")),
    # allauth ends the user's id at the first dash; ours have one (us-…), which its own pattern would split.
    re_path(r"^account/password/reset/key/(?P<uidb36>us-[0-9a-z]+)-(?P<key>.+)/$", password_reset_from_key),
    path("account/security/", include("allauth.mfa.urls")),
    path("account/", include("allauth.account.urls")),
    path("i18n/setlang/", set_language, name="set_language"),
    path("admin/", admin.site.urls),
    path("api/v1/", include("portal.api_urls")),
    path("api/v1/", include("rental.api_urls")),
    path("api/v1/", include("billing.api_urls")),
    path("api/node/v1/", include("nodes.node_urls")),
    path("api/node/v1/", include("rental.node_urls")),
]
if settings.DEBUG:
    urlpatterns.append(path("states", StatesPage.as_view(), name="states"))
