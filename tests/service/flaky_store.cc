#include "tests/service/flaky_store.h"

namespace weft::broker {

Status FlakyStore::append(std::span<const Record> records) {
  ++appends_;
  std::function<Status(std::span<const Record>)> verdict;
  {
    const std::lock_guard lock(mutex_);
    verdict = verdict_;
  }
  if (verdict) WEFT_TRY_STATUS(verdict(records));
  return memory_.append(records);
}

}  // namespace weft::broker
