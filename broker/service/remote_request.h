// A request to a served model that has not ended: everything by which whoever computes it can go on with it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/units.h"
#include "proto/messages.h"
#include "serve/service/token_source.h"

namespace weft::broker {

struct RemoteRequest {
  uint64_t id = 0;
  uint64_t number = 0;  // by which the entry knows it
  serve::Request request;
  serve::Listener listener;
  serve::TokenSource::Begun begun;  // until it is told
  std::vector<int64_t> tokens;      // all that are known
  int64_t tokens_max = 0;
  bool is_at_entry = false, was_sent = false, has_gap = false;
  bool was_under_way = false;  // with a broker before this one
  Instant arrived{}, sent{}, asked{}, heard{}, not_before{};
  std::optional<Instant> last_token{};
  int contradictions = 0, tries = 0, gaps = 0, losses = 0;
  std::optional<Instant> spoilt_since;  // it is not with the entry
  int spoilt = 0;                       // at places that were lost behind that

  size_t drawn() const { return tokens.size() - request.prompt.size(); }
  bool is_full() const { return drawn() == static_cast<size_t>(tokens_max); }
  // For an entry, but for the run and its plan: to go on behind every token that is known.
  proto::ServeRequest message() const;
  // Its place is another one, or none.
  void lose_place();
  // The entry takes it for a request that it does not know.
  void renumber(uint64_t other);
  void add_token(int64_t token);
};

}  // namespace weft::broker
