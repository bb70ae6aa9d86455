// The answer to one request, kept from its beginning until a while after its end, so that whoever has lost
// the connection can read it again.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/mutex.h"
#include "base/units.h"
#include "web/service.h"

namespace weft::serve {

// Any thread. Sinks are told in order, each from the beginning.
class Answer {
 public:
  explicit Answer(web::Generation generation) : generation_(std::move(generation)) {}
  const std::string& id() const { return generation_.id; }
  const web::Generation& generation() const { return generation_; }

  // The request has been taken: from here on an error is a part of the answer. Before that it has a status of
  // its own. Sinks are told nothing yet.
  void hold();
  // Sinks are told of its beginning, and all that has come meanwhile.
  void begin();
  // Tells the sink all that there is, and what comes.
  void attach(std::shared_ptr<web::Sink> sink);
  // From one thread. False: nobody listens now.
  bool add(web::Piece piece);
  void end(const web::GenerationEnd& end);
  void end(const web::ApiError& error);
  // When it ended, by whoever's clock; nothing: it has not.
  void set_ended(Instant now);
  std::optional<Instant> ended() const;
  bool has_failed() const;

 private:
  using End = std::variant<web::GenerationEnd, web::ApiError>;
  void finish(End end);
  bool tell_all(web::Sink& sink) const WEFT_REQUIRES(mutex_);  // false: it is to be let go of
  static void tell_end(web::Sink& sink, const End& end);

  const web::Generation generation_;
  mutable Mutex mutex_;
  bool held_ WEFT_GUARDED_BY(mutex_) = false, begun_ WEFT_GUARDED_BY(mutex_) = false;
  std::vector<web::Piece> pieces_ WEFT_GUARDED_BY(mutex_);
  std::optional<End> end_ WEFT_GUARDED_BY(mutex_);
  std::optional<Instant> ended_ WEFT_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<web::Sink>> sinks_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::serve
