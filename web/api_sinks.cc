#include "web/api_sinks.h"

#include <optional>

#include "base/check.h"
#include "web/openai.h"

namespace weft::web {

namespace {

class WholeSink final : public Sink {
 public:
  WholeSink(Responder responder, size_t text_max) : responder_(std::move(responder)), text_max_(text_max) {}

  void on_start(const Generation& generation) override {
    id_ = generation.id;
    writer_.emplace(generation);
  }
  bool on_piece(const Piece& piece) override {
    WEFT_CHECK(writer_.has_value());
    if (is_over_ || responder_.is_gone()) return false;
    writer_->add(piece);
    if (writer_->size() <= text_max_) return true;
    on_error({.status = 500,
              .type = "server_error",
              .message = "the answer is longer than " + std::to_string(text_max_) +
                         " bytes: ask for a stream, or give max_tokens"});
    return false;
  }
  void on_end(const GenerationEnd& end) override {
    WEFT_CHECK(writer_.has_value());
    if (is_over_) return;
    is_over_ = true;
    responder_.send({.body = writer_->finish(end), .headers = {{"X-Request-Id", id_}}});
  }
  void on_error(const ApiError& error) override {
    is_over_ = true;
    responder_.send(error_response(error));
  }

 private:
  const Responder responder_;
  const size_t text_max_;
  std::string id_;
  std::optional<ObjectWriter> writer_;
  bool is_over_ = false;
};

class StreamSink final : public Sink {
 public:
  StreamSink(Responder responder, std::string last_event)
      : responder_(std::move(responder)), last_event_(std::move(last_event)) {}

  void on_start(const Generation& generation) override {
    const auto seen = last_event_.empty() ? 0 : events_seen(last_event_, generation.id);
    writer_.emplace(generation, seen.value_or(0));
    responder_.start_stream();
    send(writer_->begin());
  }
  bool on_piece(const Piece& piece) override {
    WEFT_CHECK(writer_.has_value());
    return send(writer_->piece(piece));
  }
  void on_end(const GenerationEnd& end) override {
    WEFT_CHECK(writer_.has_value());
    send(writer_->finish(end));
    responder_.finish();
  }
  // Once the stream has begun its status has been said: the error is its last event.
  void on_error(const ApiError& error) override {
    if (!writer_) return responder_.send(error_response(error));
    send(writer_->fail(error));
    responder_.finish();
  }

 private:
  bool send(const std::string& events) {
    return events.empty() ? !responder_.is_gone() : responder_.write(events);
  }

  const Responder responder_;
  const std::string last_event_;
  std::optional<EventWriter> writer_;
};

}  // namespace

Response error_response(const ApiError& error) {
  Response response{.status = error.status, .body = render_error(error)};
  if (error.retry_after > 0) response.headers.push_back({"Retry-After", std::to_string(error.retry_after)});
  if (error.status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
  return response;
}

std::shared_ptr<Sink> make_whole_sink(Responder responder, size_t text_max) {
  return std::make_shared<WholeSink>(std::move(responder), text_max);
}
std::shared_ptr<Sink> make_stream_sink(Responder responder, std::string last_event) {
  return std::make_shared<StreamSink>(std::move(responder), std::move(last_event));
}

}  // namespace weft::web
