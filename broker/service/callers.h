// Who may ask the broker's HTTP door for tokens: whoever shows a token of a role that may. Beside the core,
// which owns the store of its own: the door asks with every request, and does not wait for it.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "base/digest.h"
#include "base/mutex.h"
#include "broker/service/served.h"
#include "broker/store.h"

namespace weft::broker {

class Callers {
 public:
  // Opens the database once more.
  static Result<std::unique_ptr<Callers>> open(const std::filesystem::path& database, const PeerId& broker);
  Callers(std::unique_ptr<Store> store, const PeerId& broker) : broker_(broker), store_(std::move(store)) {}

  // As CheckCaller. Nothing of the token is in an error but its role.
  Result<Caller> check(std::string_view bearer_token);
  // No caller's token was made yet, whatever became of those that were.
  bool nobody_was_invited();

 private:
  const PeerId broker_;
  Mutex mutex_;
  std::unique_ptr<Store> store_ WEFT_GUARDED_BY(mutex_);
  bool somebody_was_invited_ WEFT_GUARDED_BY(mutex_) = false;
};

}  // namespace weft::broker
