// The bytes of a blob that is put, from first to last: as they are, or packed unit by unit, each as its turn
// comes.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "net/frame.h"
#include "storage/packed.h"

namespace weft::peer {

class PutBody {
 public:
  net::SharedBytes bytes{};  // of the blob
  net::SharedBytes base{};   // packed on this, until all is; none: on nothing

  // Where everything is packed: before next(), which then gives parts of what this packs.
  void pack_next(storage::Packer& packer);
  size_t next_size() const;  // at most so much can be had at a time
  net::SharedBytes next(size_t size);
  size_t taken() const { return sent_; }  // bytes of the blob that next() has given, or will from a unit
  void begin_again() { sent_ = 0; }       // REQUIRES: is_sent()
  bool is_sent() const { return sent_ == bytes.bytes.size() && !unit_; }

 private:
  size_t sent_ = 0;  // bytes of the blob; of one that is packed, also those that are in the unit
  std::shared_ptr<const std::vector<std::byte>> unit_{};
  size_t unit_sent_ = 0;
};

}  // namespace weft::peer
