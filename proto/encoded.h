// A message that is stored and sent several times, beside its bytes. They are made once, where the message is
// decoded or built first; who needs them later takes these (bytes_of in proto/codec/codec.h). Both are shared
// and never change: a copy costs pointers, and any thread may have it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

namespace weft::proto {

// Bytes of an encoded message; `owner` keeps them.
struct EncodedBytes {
  std::span<const std::byte> bytes{};
  std::shared_ptr<const void> owner{};
  explicit operator bool() const { return !bytes.empty(); }
};

template <typename T>
class Encoded {
 public:
  Encoded() = default;  // no message
  // `bytes`: of this message; none: they are not at hand.
  template <typename U>
  requires std::is_same_v<std::remove_const_t<U>, T> Encoded(std::shared_ptr<U> message,
                                                             EncodedBytes bytes = {})
      : message_(std::move(message)), bytes_(std::move(bytes)) {}
  Encoded(T message) : message_(std::make_shared<const T>(std::move(message))) {}

  // REQUIRES: there is a message.
  const T& operator*() const { return *message_; }
  const T* operator->() const { return message_.get(); }
  const T* get() const { return message_.get(); }
  explicit operator bool() const { return message_ != nullptr; }
  bool operator==(std::nullptr_t) const { return message_ == nullptr; }
  operator const std::shared_ptr<const T>&() const { return message_; }

  const EncodedBytes& bytes() const { return bytes_; }  // none where they are not at hand

 private:
  std::shared_ptr<const T> message_;
  EncodedBytes bytes_;
};

}  // namespace weft::proto
