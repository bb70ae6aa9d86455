// What comes of a blob that was asked for: collected, unpacked on the way, or handed on as it comes; and its
// hash. Knows no connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "net/connection.h"
#include "storage/packed.h"
#include "storage/sha256.h"

namespace weft::peer {

class GetBody {
 public:
  using Sink = std::function<Status(std::span<const std::byte>)>;
  // `sink`: takes the bytes as they come, so that none are collected. `base`: for packed bytes to be
  // differences to; without an owner there is none.
  explicit GetBody(Sink sink = {}, net::SharedBytes base = {})
      : sink_(std::move(sink)), base_(std::move(base)) {}

  // How the other side means to send it. A base that is not used is let go of. Memory is named for all of
  // it, and taken as pieces come. Errors: ResourceExhausted, nobody can name so much.
  struct Form {
    uint64_t size = 0;
    bool is_packed = false, has_base = false;
  };
  Status begin(const Form& form);
  bool has_base_of(uint64_t size) const { return base_.owner && base_.bytes.size() == size; }
  bool has_begun() const { return has_begun_; }
  bool is_whole() const { return has_begun_ && (sink_ ? handed_on_ : bytes_->size()) == size_; }
  bool is_handed_on() const { return static_cast<bool>(sink_); }

  // Whether a chunk of so many bytes is part of what was promised; of packed bytes that shows later.
  bool expects(size_t chunk) const;
  // `placed`: bytes before the chunk's that went where place() said. Errors: Corrupted, of packed bytes;
  // what the sink says.
  Status take(std::span<const std::byte> chunk, size_t placed);
  // Where the next so many bytes of a frame may go, behind the head's; nothing where they have to be looked
  // at first. Shared with whoever reads into it.
  net::PayloadPlace place(size_t head_size, size_t size);

  std::string hash() { return hash_->hex(); }  // of all that has come
  std::vector<std::byte> take_bytes() { return std::move(*bytes_); }

 private:
  Status unpack(std::span<const std::byte> chunk);

  Sink sink_;
  net::SharedBytes base_;
  bool has_begun_ = false;
  uint64_t size_ = 0, handed_on_ = 0;
  std::shared_ptr<std::vector<std::byte>> bytes_ = std::make_shared<std::vector<std::byte>>();
  std::unique_ptr<storage::Sha256> hash_ = std::make_unique<storage::Sha256>();
  std::unique_ptr<storage::Unpacker> unpacker_;
};

}  // namespace weft::peer
