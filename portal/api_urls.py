"""Routes under /api/v1/ of the accounts, and the API's own description."""

from django.urls import path

from portal import api, docs_views, tenant_api

urlpatterns = [
    path("openapi.json", docs_views.Document.as_view(), name="openapi"),
    path("docs/", docs_views.Browser.as_view(), name="api-docs"),
    path("me", api.Me.as_view()),
    path("ssh-keys", api.SshKeys.as_view()),
    path("ssh-keys/<str:key_id>", api.OneSshKey.as_view()),
    path("tokens", api.Tokens.as_view()),
    path("tokens/<str:token_id>", api.OneToken.as_view()),
    path("tenants", tenant_api.Tenants.as_view()),
    path("tenants/<str:tenant_id>", tenant_api.OneTenant.as_view()),
    path("tenants/<str:tenant_id>/members", tenant_api.Members.as_view()),
    path("tenants/<str:tenant_id>/members/<str:user_id>", tenant_api.OneMember.as_view()),
    path("tenants/<str:tenant_id>/invitations", tenant_api.Invitations.as_view()),
    path("tenants/<str:tenant_id>/invitations/<str:invitation_id>", tenant_api.OneInvitation.as_view()),
    path("tenants/<str:tenant_id>/invitations/<str:invitation_id>/resend", tenant_api.ResendInvitation.as_view()),
]
