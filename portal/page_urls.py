"""Pages of the accounts and the project itself."""

from django.urls import path

from portal import access_views, security_views, views

urlpatterns = [
    path("healthz", views.healthz, name="healthz"),
    path("readyz", views.readyz, name="readyz"),
    path("prefs/theme", views.set_theme, name="set-theme"),
    path("account/sessions/", security_views.Sessions.as_view(), name="sessions"),
    path("account/sessions/<int:session_id>/end/", security_views.EndSession.as_view(), name="session-end"),
    path("access/keys/", access_views.SshKeys.as_view(), name="ssh-keys"),
    path("access/keys/<str:key_id>/remove/", access_views.RemoveSshKey.as_view(), name="ssh-key-remove"),
    path("access/tokens/", access_views.ApiTokens.as_view(), name="api-tokens"),
    path("access/tokens/<str:token_id>/revoke/", access_views.RevokeApiToken.as_view(), name="api-token-revoke"),
]
