#include "base/result.h"

namespace weft {
std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::InvalidArgument:
      return "InvalidArgument";
    case ErrorCode::NotFound:
      return "NotFound";
    case ErrorCode::Unsupported:
      return "Unsupported";
    case ErrorCode::OutOfRange:
      return "OutOfRange";
    case ErrorCode::Corrupted:
      return "Corrupted";
    case ErrorCode::Unavailable:
      return "Unavailable";
    case ErrorCode::Timeout:
      return "Timeout";
    case ErrorCode::PermissionDenied:
      return "PermissionDenied";
    case ErrorCode::ResourceExhausted:
      return "ResourceExhausted";
    case ErrorCode::VersionMismatch:
      return "VersionMismatch";
    case ErrorCode::Infeasible:
      return "Infeasible";
    case ErrorCode::Cancelled:
      return "Cancelled";
    case ErrorCode::DeviceLost:
      return "DeviceLost";
    case ErrorCode::Internal:
      return "Internal";
  }
  return "Unknown";
}
}  // namespace weft
