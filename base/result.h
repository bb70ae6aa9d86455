// Result<T>: a value or a typed error. For everything that the world can get wrong: files, models,
// options, peers. tl::expected has std::expected's shape and gives way to it when the compiler has one.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace weft {

// Stable: exit codes and wire codes are derived from these.
enum class ErrorCode {
  InvalidArgument,  // what was asked makes no sense as written
  NotFound,         // a file, name or id that is not there
  Unsupported,      // understood, but not implemented here
  OutOfRange,       // a number beyond its documented bounds
  Corrupted,        // bytes that do not mean what they claim to
  Unavailable,      // try again later
  Timeout,
  PermissionDenied,
  ResourceExhausted,  // memory, disk, a limit
  VersionMismatch,
  Infeasible,  // no plan can satisfy the request
  Cancelled,
  Internal,    // a library failed in a way that we did not foresee
  DeviceLost,  // the device that computed is gone, or does not answer: nothing more comes of this process
};
inline constexpr ErrorCode kErrorCodeLast = ErrorCode::DeviceLost;  // what is read is bounded by it

std::string_view to_string(ErrorCode code);

// What happened, where, and what to try; message is one or more complete lines without a trailing newline.
struct Error {
  ErrorCode code = ErrorCode::Internal;
  std::string message;

  // The same error with "prefix: " in front: callers add where they were.
  Error within(std::string_view prefix) const& { return {code, std::string(prefix) + ": " + message}; }
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> fail(ErrorCode code, std::string message) {
  return tl::unexpected<Error>(Error{code, std::move(message)});
}
inline tl::unexpected<Error> fail(Error error) { return tl::unexpected<Error>(std::move(error)); }

}  // namespace weft

#define WEFT_CONCAT_INNER(a, b) a##b
#define WEFT_CONCAT(a, b) WEFT_CONCAT_INNER(a, b)

// WEFT_TRY(auto x, f()): x is the value, or the enclosing function returns the error.
#define WEFT_TRY(declaration, expression) \
  WEFT_TRY_INNER(WEFT_CONCAT(weft_try_, __LINE__), declaration, expression)
#define WEFT_TRY_INNER(temporary, declaration, expression)           \
  auto temporary = (expression);                                     \
  if (!temporary) return ::weft::fail(std::move(temporary).error()); \
  declaration = std::move(*temporary)

// The same for a Status, or for a Result whose value is not wanted.
#define WEFT_TRY_STATUS(expression)                                                \
  do {                                                                             \
    auto weft_try_status = (expression);                                           \
    if (!weft_try_status) return ::weft::fail(std::move(weft_try_status).error()); \
  } while (false)
