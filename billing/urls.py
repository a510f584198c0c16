"""Pages under /billing/."""

from django.urls import path

from billing import views

urlpatterns = [
    path("", views.balance, name="balance"),
    path("cap", views.month_cap, name="month-cap"),
]
