"""Modal as a host."""

from __future__ import annotations

from assay.hosts.modal.provider import ModalProvider
from assay.hosts.rented.host import RentedHost

HOST = RentedHost(ModalProvider())
