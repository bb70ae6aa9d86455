// What is counted of the requests to one served model, and what its entry says of the ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/metrics.h"
#include "base/units.h"
#include "proto/messages.h"
#include "serve/request.h"

namespace weft::broker {

class RemoteFigures {
 public:
  explicit RemoteFigures(const std::string& model);

  void count(const char* name, double more = 1) { metrics_.add(name, more, labels_); }
  void count_end(serve::Finish finish);
  // `since`: when the token before it came, or else when the request did.
  void count_token(bool is_first, Duration since);
  void count_progress(const proto::ServeProgress& progress);
  // The ring is another one now, of which nothing has been told.
  void forget_load() { load_ = {}; }

  struct Now {
    size_t open = 0, at_entry = 0;           // requests
    std::optional<int64_t> positions_max{};  // that the ring has memory for; nothing: there is no ring
  };
  Metrics metrics(const Now& now) const;

 private:
  const Labels labels_;
  Metrics metrics_;
  proto::ServeLoad load_{};  // as the entry told it last
};

}  // namespace weft::broker
