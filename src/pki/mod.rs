//! Certificates: roles as extended key usages, issuing, inspecting, files.
