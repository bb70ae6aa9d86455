#include "serve/service/answer.h"

#include <algorithm>

namespace weft::serve {

void Answer::tell_end(web::Sink& sink, const End& end) {
  if (const auto* good = std::get_if<web::GenerationEnd>(&end))
    sink.on_end(*good);
  else
    sink.on_error(std::get<web::ApiError>(end));
}

void Answer::hold() {
  const MutexLock lock(mutex_);
  held_ = !begun_;
}

void Answer::begin() {
  const MutexLock lock(mutex_);
  if (begun_) return;
  begun_ = true;
  held_ = false;
  std::erase_if(sinks_, [&](const auto& sink) WEFT_REQUIRES(mutex_) { return !tell_all(*sink); });
}

bool Answer::tell_all(web::Sink& sink) const {
  sink.on_start(generation_);
  for (const web::Piece& piece : pieces_)
    if (!sink.on_piece(piece)) return false;
  if (!end_) return true;
  tell_end(sink, *end_);
  return false;
}

void Answer::attach(std::shared_ptr<web::Sink> sink) {
  const MutexLock lock(mutex_);
  if (begun_ && !tell_all(*sink)) return;
  if (!begun_ && !held_ && end_) return tell_end(*sink, *end_);
  sinks_.push_back(std::move(sink));
}

bool Answer::add(web::Piece piece) {
  const MutexLock lock(mutex_);
  pieces_.push_back(std::move(piece));
  if (held_) return true;
  const web::Piece& last = pieces_.back();
  std::erase_if(sinks_, [&](const auto& sink) { return !sink->on_piece(last); });
  return !sinks_.empty();
}

void Answer::finish(End end) {
  const MutexLock lock(mutex_);
  end_ = std::move(end);
  if (held_) return;
  for (const auto& sink : sinks_) tell_end(*sink, *end_);
  sinks_.clear();
}
void Answer::end(const web::GenerationEnd& end) { finish(end); }
void Answer::end(const web::ApiError& error) { finish(error); }

void Answer::set_ended(Instant now) {
  const MutexLock lock(mutex_);
  ended_ = now;
}
bool Answer::has_failed() const {
  const MutexLock lock(mutex_);
  return end_ && std::holds_alternative<web::ApiError>(*end_);
}
std::optional<Instant> Answer::ended() const {
  const MutexLock lock(mutex_);
  return ended_;
}

}  // namespace weft::serve
