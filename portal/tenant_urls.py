"""Pages of tenants and invitations."""

from django.urls import path

from portal import invitation_views, tenant_views

urlpatterns = [
    path("tenants/", tenant_views.Tenants.as_view(), name="tenants"),
    path("tenants/switch/", tenant_views.Switch.as_view(), name="tenant-switch"),
    path("tenants/roles/", tenant_views.Roles.as_view(), name="tenant-roles"),
    path("tenants/<str:tenant_id>/", tenant_views.Members.as_view(), name="tenant"),
    path("tenants/<str:tenant_id>/rename/", tenant_views.Rename.as_view(), name="tenant-rename"),
    path("tenants/<str:tenant_id>/invite/", tenant_views.Invite.as_view(), name="tenant-invite"),
    path("tenants/<str:tenant_id>/leave/", tenant_views.Leave.as_view(), name="tenant-leave"),
    path("tenants/<str:tenant_id>/hand-over/", tenant_views.HandOver.as_view(), name="tenant-hand-over"),
    path(
        "tenants/<str:tenant_id>/members/<str:user_id>/role/",
        tenant_views.ChangeRole.as_view(),
        name="tenant-member-role",
    ),
    path(
        "tenants/<str:tenant_id>/members/<str:user_id>/remove/",
        tenant_views.Remove.as_view(),
        name="tenant-member-remove",
    ),
    path(
        "tenants/<str:tenant_id>/invitations/<str:invitation_id>/resend/",
        tenant_views.Resend.as_view(),
        name="tenant-invitation-resend",
    ),
    path(
        "tenants/<str:tenant_id>/invitations/<str:invitation_id>/withdraw/",
        tenant_views.Withdraw.as_view(),
        name="tenant-invitation-withdraw",
    ),
    path("invitations/link/<str:token>/", invitation_views.Link.as_view(), name="invitation-link"),
    path("invitations/open/", invitation_views.Opened.as_view(), name="invitation"),
    path("invitations/<str:invitation_id>/accept/", invitation_views.Accept.as_view(), name="invitation-accept"),
    path("invitations/<str:invitation_id>/decline/", invitation_views.Decline.as_view(), name="invitation-decline"),
]
