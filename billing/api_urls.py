"""Routes under /api/v1/ of billing."""

from django.urls import path

from billing import api

urlpatterns = [
    path("balance", api.Balance.as_view()),
    path("ledger", api.Ledger.as_view()),
]
