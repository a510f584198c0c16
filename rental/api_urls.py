"""Routes under /api/v1/ of rentals."""

from django.urls import path

from rental import api

urlpatterns = [
    path("offers", api.Offers.as_view()),
    path("quotes", api.Quotes.as_view()),
    path("leases", api.Leases.as_view()),
    path("leases/<str:lease_id>", api.OneLease.as_view()),
    path("leases/<str:lease_id>/stop", api.StopLease.as_view()),
    path("leases/<str:lease_id>/keep", api.KeepLease.as_view()),
    path("leases/<str:lease_id>/extend", api.ExtendLease.as_view()),
    path("leases/<str:lease_id>/events", api.LeaseEvents.as_view()),
    path("leases/<str:lease_id>/receipt", api.LeaseReceipt.as_view(), name="api-lease-receipt"),
]
