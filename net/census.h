// How many connections there are, in all and from one address.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "base/check.h"

namespace weft::net {

// Who is counted together: an IPv4 address, or the /64 that one customer is given.
using AddressKey = std::array<uint8_t, 9>;

// Tokens count themselves out, also after whoever made the census has gone. Belongs to one loop.
class Census : public std::enable_shared_from_this<Census> {
 public:
  size_t size() const { return size_; }
  size_t size_at(const AddressKey& key) const {
    const auto found = by_address_.find(key);
    return found == by_address_.end() ? 0 : found->second;
  }
  // Where most are. REQUIRES: there are some.
  const AddressKey& fullest() const {
    WEFT_CHECK(!by_address_.empty());
    auto most = by_address_.begin();
    for (auto at = by_address_.begin(); at != by_address_.end(); ++at)
      if (at->second > most->second) most = at;
    return most->first;
  }
  std::shared_ptr<void> enter(const AddressKey& key) {
    ++size_;
    ++by_address_[key];
    return std::shared_ptr<void>(nullptr, [self = shared_from_this(), key](void*) {
      --self->size_;
      if (--self->by_address_[key] == 0) self->by_address_.erase(key);
    });
  }

 private:
  size_t size_ = 0;
  std::map<AddressKey, size_t> by_address_;
};

}  // namespace weft::net
