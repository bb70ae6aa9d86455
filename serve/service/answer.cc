#include "serve/service/answer.h"

#include <algorithm>

namespace weft::serve {

void Answer::tell_end(web::Sink& sink, const End& end) {
  if (const auto* good = std::get_if<web::GenerationEnd>(&end))
    sink.on_end(*good);
  else
    sink.on_error(std::get<web::ApiError>(end));
}

void Answer::begin() {
  const MutexLock lock(mutex_);
  begun_ = true;
  for (const auto& sink : sinks_) sink->on_start(generation_);
}

void Answer::attach(std::shared_ptr<web::Sink> sink) {
  const MutexLock lock(mutex_);
  if (begun_) sink->on_start(generation_);
  for (const web::Piece& piece : pieces_)
    if (!sink->on_piece(piece)) return;
  if (end_)
    tell_end(*sink, *end_);
  else
    sinks_.push_back(std::move(sink));
}

bool Answer::add(web::Piece piece) {
  const MutexLock lock(mutex_);
  pieces_.push_back(std::move(piece));
  const web::Piece& last = pieces_.back();
  std::erase_if(sinks_, [&](const auto& sink) { return !sink->on_piece(last); });
  return !sinks_.empty();
}

void Answer::finish(End end) {
  const MutexLock lock(mutex_);
  end_ = std::move(end);
  for (const auto& sink : sinks_) tell_end(*sink, *end_);
  sinks_.clear();
}
void Answer::end(const web::GenerationEnd& end) { finish(end); }
void Answer::end(const web::ApiError& error) { finish(error); }

void Answer::set_ended(Instant now) {
  const MutexLock lock(mutex_);
  ended_ = now;
}
std::optional<Instant> Answer::ended() const {
  const MutexLock lock(mutex_);
  return ended_;
}

}  // namespace weft::serve
