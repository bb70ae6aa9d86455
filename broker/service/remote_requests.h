// The requests to one served model whose tokens come from the entry of a ring of peers. A request lives here,
// not there: its prompt, its settings and every token that is known. Where the ring is planned or placed
// again, each is sent to the new entry with all of that, and its text goes on as if nothing had been, for a
// draw is a pure function of logits, seed and position.
//
// What an entry tells may be lost, come twice or contradict itself. Tokens that were known before are
// compared; what was told first stands. A state machine: it reads no clock, and one thread at a time uses it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/result.h"
#include "base/units.h"
#include "broker/service/remote_figures.h"
#include "broker/service/remote_request.h"
#include "broker/service/served.h"
#include "serve/service/token_source.h"

namespace weft::broker {

struct RemoteOptions {
  size_t waiting_max = 256;                              // requests that are not with the entry
  size_t beyond_sequences = 64;                          // that are with the entry, and wait there
  size_t prompts_max = size_t{16} << 20;                 // tokens, of all prompts together
  Duration without_place = std::chrono::seconds(30);     // until requests end that nothing was told of
  Duration under_way_without = std::chrono::minutes(2);  // and the others
  Duration silence = std::chrono::seconds(60);           // of the entry about a request: it is asked again
  Duration pause = std::chrono::seconds(1);              // between two such questions, and before another try
  Duration stalled = std::chrono::minutes(15);           // without a new token of any: they end
  int contradictions_max = 3;                            // of one request
  int tries_max = 8;                                     // of one request at one place
  int gaps_max = 3;  // answers in a row that begin behind what is known, until it is asked for anew
  // Of which the entry says that it is not finite: until that is told. If a peer is at fault the place is
  // lost by then, and the request is sent to the next one.
  Duration blame = std::chrono::seconds(2);
  int spoilt_max = 3;  // places where that happened
  // Places in a row that were lost without a token of it: from then on it is sent while no other such one is
  // there, and in the end given up.
  int losses_suspect = 3, losses_max = 8;
};

class RemoteRequests {
 public:
  using Log = std::function<void(const std::string& line)>;
  // Numbers of requests count up from `first_number`: at random, so that none is used twice, whenever the
  // broker was started.
  RemoteRequests(const ServedJob& job, uint64_t first_number, TellPeer tell, Log log,
                 RemoteOptions options = {});

  int64_t context() const { return context_; }
  int64_t vocabulary() const { return vocabulary_; }

  // As TokenSource has it; beyond Engine's errors Unavailable, with what lacks: there has been no place yet,
  // or for a while.
  void add(serve::Request request, serve::Listener listener, serve::TokenSource::Begun begun, Instant now);
  // One of a broker before this one, by the number that the entry may know it by. It is taken without a
  // place, too.
  void reopen(uint64_t number, serve::Request request, serve::Listener listener,
              serve::TokenSource::Begun begun, Instant now);
  void cancel(uint64_t id, Instant now);
  void place(const ServedJob& job, Instant now);
  void progress(const PeerId& from, const proto::ServeProgress& progress, Instant now);
  void tick(Instant now);  // about once a second
  // All of them end with it, and those that come.
  void close(const Error& why);

  // Requests that come now are taken, as far as there is room.
  bool answers(Instant now) const;
  const std::string& unavailable() const { return unavailable_; }  // empty: there is a place
  serve::TokenSource::Pulse pulse() const;
  Metrics metrics() const;

 private:
  using Open = RemoteRequest;

  serve::RequestLimits limits() const { return {context_, vocabulary_}; }
  bool fits(int64_t positions) const;  // into the memory of the ring
  Status room_for(const serve::Request& request, Instant now);
  void take(uint64_t number, serve::Request request, serve::Listener listener,
            serve::TokenSource::Begun begun, Instant now);
  void begin_all();
  void pump(Instant now);
  void send(Open& open, Instant now);
  void ask_again(Open& open, Instant now);
  void cancel_at_entry(const Open& open);
  // False: the request has ended, or what else was told of it is worth nothing.
  bool take_tokens(uint64_t id, const proto::ServeProgress& progress, Instant now);
  bool take(uint64_t id, const proto::ServedToken& token, Instant now);
  void take_end(uint64_t id, const proto::ServeProgress& progress, Instant now);
  void take_failure(uint64_t id, Error error, Instant now);
  void take_spoilt(uint64_t id, Instant now);
  void distrust(uint64_t id, const std::string& what, Instant now);
  void try_later(Open& open, Instant now);
  void renumber(Open& open);
  void tick_one(uint64_t id, Instant now);
  bool is_suspect(const Open& open) const { return open.losses >= options_.losses_suspect; }
  void end_lost();
  void end_spoilt(uint64_t id);
  void end(uint64_t id, serve::Finish finish, const Status& status = {});
  size_t at_entry_max() const { return sequences_max_ + options_.beyond_sequences; }

  const RemoteOptions options_;
  const TellPeer tell_;
  const Log log_;
  const proto::JobNumber job_;
  const std::string name_;
  const int64_t context_, vocabulary_;
  int64_t positions_max_ = 0;
  size_t sequences_max_ = 0;
  std::optional<ServedPlace> place_;
  std::optional<Instant> placeless_since_;  // nothing: there was never one
  std::optional<Error> closed_;
  std::string unavailable_;
  uint64_t next_number_;
  std::map<uint64_t, Open> open_;           // in the order of arrival
  std::map<uint64_t, uint64_t> by_number_;  // of those that are at the entry
  size_t prompts_ = 0;                      // tokens
  Instant last_token_{}, moved_on_{};       // of any request; and since then, at the latest, nothing has come
  RemoteFigures figures_;
};

}  // namespace weft::broker
