#include "broker/service/frame_pipe.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

namespace weft::broker {

namespace {
tl::unexpected<Error> gone() { return fail(ErrorCode::Unavailable, "the other process is gone"); }
}  // namespace

Instant monotonic_now() {
  return Instant(std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch()));
}

Status FramePipe::wait_for(short events) const {
  for (;;) {
    int timeout = -1;
    if (deadline_) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline_ - monotonic_now());
      if (left.count() <= 0) return fail(ErrorCode::Timeout, "the other process took too long");
      timeout = static_cast<int>(std::min<int64_t>(left.count(), 1'000'000));
    }
    pollfd ready{.fd = descriptor_, .events = events, .revents = 0};
    const int count = ::poll(&ready, 1, timeout);
    if (count > 0) return {};  // also when it hung up: the call that follows says so
    if (count < 0 && errno != EINTR) return gone();
  }
}

Status FramePipe::send(std::span<const std::byte> bytes) {
  const uint64_t size = bytes.size();
  std::byte head[sizeof size];
  std::memcpy(head, &size, sizeof size);
  for (std::span<const std::byte> part : {std::span<const std::byte>(head), bytes})
    while (!part.empty()) {
      WEFT_TRY_STATUS(wait_for(POLLOUT));
      const ssize_t sent = ::send(descriptor_, part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (sent <= 0) return gone();
      part = part.subspan(static_cast<size_t>(sent));
    }
  return {};
}

Status FramePipe::read(std::span<std::byte> out) {
  while (!out.empty()) {
    WEFT_TRY_STATUS(wait_for(POLLIN));
    const ssize_t got = ::recv(descriptor_, out.data(), out.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return gone();
    out = out.subspan(static_cast<size_t>(got));
  }
  return {};
}

Result<std::vector<std::byte>> FramePipe::receive(size_t size_max) {
  uint64_t size = 0;
  std::byte head[sizeof size];
  WEFT_TRY_STATUS(read(head));
  std::memcpy(&size, head, sizeof size);
  if (size > size_max)
    return fail(ErrorCode::OutOfRange, "a frame of " + std::to_string(size) + " bytes; at most " +
                                           std::to_string(size_max) + " are taken");
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  WEFT_TRY_STATUS(read(bytes));
  return bytes;
}

}  // namespace weft::broker
