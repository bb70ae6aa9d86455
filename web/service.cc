#include "web/service.h"

#include <algorithm>

namespace weft::web {

namespace {

struct Wording {
  int status;
  const char* type;
};

Wording wording_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::InvalidArgument:
    case ErrorCode::Unsupported:
    case ErrorCode::OutOfRange:
    case ErrorCode::Infeasible:
      return {400, "invalid_request_error"};
    case ErrorCode::PermissionDenied:
      return {403, "invalid_request_error"};
    case ErrorCode::NotFound:
      return {404, "invalid_request_error"};
    case ErrorCode::ResourceExhausted:
      return {429, "rate_limit_error"};
    case ErrorCode::Unavailable:
    case ErrorCode::Timeout:
    case ErrorCode::Cancelled:
    case ErrorCode::DeviceLost:
      return {503, "service_unavailable_error"};
    case ErrorCode::Corrupted:
    case ErrorCode::VersionMismatch:
    case ErrorCode::Internal:
      break;
  }
  return {500, "server_error"};
}

}  // namespace

ApiError to_api_error(const Error& error) {
  const Wording wording = wording_of(error.code);
  return {.status = wording.status,
          .type = wording.type,
          .message = error.message,
          .retry_after = wording.status == 429 || wording.status == 503 ? 1u : 0u};
}

ApiError unknown_model(const std::string& model, const std::vector<std::string>& known) {
  std::string message = "model: there is no '" + model + "' here; ";
  message += known.empty() ? "no model is served" : "there is ";
  for (size_t i = 0; i < known.size(); ++i) message += (i > 0 ? ", '" : "'") + known[i] + "'";
  return {.status = 404, .param = "model", .code = "model_not_found", .message = message};
}

}  // namespace weft::web
