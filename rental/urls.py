"""Pages of rentals."""

from django.urls import path

from rental import extend_views, keep_views, organisation_views, people_views, rent_views, streams, views

urlpatterns = [
    path("", views.Catalog.as_view(), name="catalog"),
    path("rent", rent_views.Rent.as_view(), name="rent"),
    path("leases/", views.Leases.as_view(), name="leases"),
    path("leases/quote", rent_views.QuotePanel.as_view(), name="quote-panel"),
    path("leases/<str:lease_id>/", views.OneLease.as_view(), name="lease"),
    path("leases/<str:lease_id>/stop", views.StopLease.as_view(), name="lease-stop"),
    path("leases/<str:lease_id>/extend", extend_views.ExtendLease.as_view(), name="lease-extend"),
    path("leases/<str:lease_id>/receipt", views.LeaseReceipt.as_view(), name="lease-receipt"),
    path("leases/<str:lease_id>/keep", keep_views.KeepLease.as_view(), name="lease-keep"),
    path("keep/<str:token>", keep_views.KeepByLink.as_view(), name="keep-link"),
    path("idle", keep_views.IdleRules.as_view(), name="idle-rules"),
    path("account/delete/", people_views.DeleteAccount.as_view(), name="account-delete"),
    path("tenants/<str:tenant_id>/delete/", organisation_views.DeleteOrganisation.as_view(), name="tenant-delete"),
    path("stream/leases/<str:lease_id>", streams.lease, name="stream-lease"),
    path("stream/home", streams.home, name="stream-home"),
    path("stream/offers", streams.offers, name="stream-offers"),
]
