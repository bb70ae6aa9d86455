#include "web/client.h"

#include <algorithm>
#include <optional>
#include <random>

#include "base/printable.h"
#include "web/client_request.h"
#include "web/event_parser.h"
#include "web/openai_client.h"

namespace weft::web {

namespace {

constexpr size_t kUnansweredMax = 4;

using Told = std::function<void(const std::string& text)>;

// A stream that may take several connections.
struct Following {
  std::string key;        // of the request, however often it is asked
  std::string stream;     // its name for the service, once an event had one
  uint64_t seen = 0;      // number of the last event that was told
  bool is_done = false;   // [DONE] has come
  bool is_heard = false;  // a service began to answer
  size_t unanswered = 0;  // requests whose connection ended before an answer
  bool has_ids = true;    // of every event so far
  AnswerEnd end;
};

// How an attempt went that met no error that is final.
struct Attempt {
  bool is_done = false;
  Error why_broken{};
};

class LoopClient final : public Client {
 public:
  LoopClient(net::Loop& loop, ClientOptions options, std::shared_ptr<const ClientTls> tls)
      : loop_(loop), options_(std::move(options)), tls_(std::move(tls)) {}

  Result<std::vector<std::string>> models() override;
  Result<AnswerEnd> generate(GenerateRequest request, const Told& on_text) override;
  void cancel() override { is_cancelled_ = true; }

 private:
  using Request = std::unique_ptr<ClientRequest>;
  Request send(std::string_view method, std::string_view path, const std::string& extra,
               std::string_view body = {}) const;
  // Until something has happened. Errors: Timeout, Cancelled.
  Status wait(const ClientRequest& request, Duration deadline, const std::string& what);
  Status wait_for_head(const ClientRequest& request, Duration deadline);
  Result<std::string> read_whole(ClientRequest& request);
  Result<std::vector<std::string>> list(ClientRequest& request);
  // An error of the service's, or nothing where its answer begins well.
  Status check_status(ClientRequest& request);
  Request ask(const Following& following, const std::string& path, const std::string& body) const;
  Result<Attempt> follow(Following& following, ClientRequest& request, const Told& on_text);
  Status take(Following& following, const ServerEvent& event, const Told& on_text);
  Result<bool> is_new(Following& following, const ServerEvent& event) const;
  Status pause(Duration time);

  net::Loop& loop_;
  const ClientOptions options_;
  const std::shared_ptr<const ClientTls> tls_;
  bool is_cancelled_ = false;
};

// Another try may do better.
bool is_break(const Error& error) {
  return error.code == ErrorCode::Unavailable || error.code == ErrorCode::Timeout;
}

tl::unexpected<Error> cancelled() { return fail(ErrorCode::Cancelled, "it was cancelled"); }

LoopClient::Request LoopClient::send(std::string_view method, std::string_view path, const std::string& extra,
                                     std::string_view body) const {
  const std::string key = options_.key.empty() ? "" : "Authorization: Bearer " + options_.key + "\r\n";
  return std::make_unique<ClientRequest>(loop_, options_.url, tls_.get(),
                                         render_http_request(options_.url, method, path, key + extra, body),
                                         options_.limits.connect_deadline);
}

Status LoopClient::wait(const ClientRequest& request, Duration deadline, const std::string& what) {
  const uint64_t before = request.progress();
  const bool happened =
      loop_.run_until(deadline, [&] { return is_cancelled_ || request.progress() != before; });
  if (is_cancelled_) return cancelled();
  if (happened) return {};
  return fail(ErrorCode::Timeout, to_string(options_.url) + ": " + what);
}

Status LoopClient::wait_for_head(const ClientRequest& request, Duration deadline) {
  using State = ClientRequest::State;
  const Instant end = loop_.now() + deadline + options_.limits.connect_deadline;
  while (request.state() == State::Connecting || request.state() == State::Waiting)
    WEFT_TRY_STATUS(
        wait(request, std::max(end - loop_.now(), Duration::zero()), "it does not begin to answer"));
  // What came before the connection broke counts.
  if (request.state() == State::Broken && !request.answer().has_head()) return fail(request.why_broken());
  return {};
}

Result<std::string> LoopClient::read_whole(ClientRequest& request) {
  const ClientLimits& limits = options_.limits;
  const Instant end = loop_.now() + limits.whole_deadline;
  std::string body;
  for (;;) {
    body += request.take_body();
    if (body.size() > limits.body_bytes_max)
      return fail(ErrorCode::ResourceExhausted, to_string(options_.url) + ": its answer has more than " +
                                                    std::to_string(limits.body_bytes_max) + " bytes");
    if (request.state() == ClientRequest::State::Complete) return body;
    if (request.state() == ClientRequest::State::Broken) return fail(request.why_broken());
    WEFT_TRY_STATUS(wait(request, std::max(end - loop_.now(), Duration::zero()), "its answer does not end"));
  }
}

Status LoopClient::check_status(ClientRequest& request) {
  const int status = request.answer().status();
  if (status == 200) return {};
  const std::string retry(request.answer().header("retry-after").value_or(""));
  const auto body = read_whole(request);
  if (!body && body.error().code == ErrorCode::Cancelled) return cancelled();
  return fail(error_of_answer(status, body ? *body : "", retry));
}

Result<std::vector<std::string>> LoopClient::list(ClientRequest& request) {
  WEFT_TRY_STATUS(wait_for_head(request, options_.limits.whole_deadline));
  WEFT_TRY_STATUS(check_status(request));
  WEFT_TRY(const std::string body, read_whole(request));
  return parse_models(body);
}

// One that hangs up before it has answered may be started again, and has no models for a while.
Result<std::vector<std::string>> LoopClient::models() {
  is_cancelled_ = false;
  const ClientLimits& limits = options_.limits;
  Duration delay = limits.retry_first;
  std::optional<Instant> gives_up;
  for (size_t unanswered = 0;;) {
    const Request request = send("GET", "/models", "");
    auto names = list(*request);
    if (request->state() == ClientRequest::State::Broken && request->was_connected()) ++unanswered;
    const bool is_away = names ? names->empty() : is_break(names.error());
    if (!is_away || unanswered == 0 || unanswered == kUnansweredMax) return names;
    if (!gives_up) gives_up = loop_.now() + limits.retry_for;
    if (loop_.now() + delay > *gives_up) return names;
    WEFT_TRY_STATUS(pause(delay));
    delay = std::min(2 * delay, limits.retry_longest);
  }
}

// ---- streams

LoopClient::Request LoopClient::ask(const Following& following, const std::string& path,
                                    const std::string& body) const {
  if (following.stream.empty())
    return send("POST", path, "Accept: text/event-stream\r\nIdempotency-Key: " + following.key + "\r\n",
                body);
  return send("GET", "/streams/" + following.stream,
              "Last-Event-ID: " + following.stream + "-" + std::to_string(following.seen) + "\r\n");
}

// False: it has been told already. Ids that do not count from 1 are another service's, and mean nothing here.
Result<bool> LoopClient::is_new(Following& following, const ServerEvent& event) const {
  if (!following.has_ids) return true;
  const auto id = parse_event_id(event.id);
  const bool is_ours = id && (following.stream.empty() || id->stream == following.stream);
  const bool is_next = is_ours && id->number == following.seen + 1;
  if (following.end.breaks > 0 && following.seen > 0 && !is_next) {
    if (is_ours && id->number <= following.seen) return false;
    return fail(ErrorCode::Corrupted, to_string(options_.url) + ": behind event " +
                                          std::to_string(following.seen) + " the stream goes on at '" +
                                          printable(event.id.substr(0, 80)) + "'");
  }
  following.has_ids = is_next;
  if (is_next) following.stream = id->stream;
  if (is_next) following.seen = id->number;
  return true;
}

Status LoopClient::take(Following& following, const ServerEvent& event, const Told& on_text) {
  if (following.is_done) return {};
  WEFT_TRY(const bool is_fresh, is_new(following, event));
  if (!is_fresh) return {};
  if (event.data == "[DONE]") {
    following.is_done = true;
    return {};
  }
  WEFT_TRY(AnswerChunk chunk, parse_chunk(event.data));
  AnswerEnd& end = following.end;
  if (!chunk.reason.empty()) end.reason = std::move(chunk.reason);
  if (!chunk.system_fingerprint.empty()) end.system_fingerprint = std::move(chunk.system_fingerprint);
  if (chunk.usage) end.usage = *chunk.usage;
  if (!chunk.text.empty()) on_text(chunk.text);
  return {};
}

Result<Attempt> LoopClient::follow(Following& following, ClientRequest& request, const Told& on_text) {
  if (const Status head = wait_for_head(request, options_.limits.head_deadline); !head) {
    if (!is_break(head.error())) return fail(head.error());
    if (request.was_connected() && head.error().code == ErrorCode::Unavailable) ++following.unanswered;
    return Attempt{.why_broken = head.error()};
  }
  if (const Status status = check_status(request); !status) {
    // A service that comes back may say for a while that it, or the model, is not there yet.
    const bool was_there = following.is_heard || following.unanswered > 0;
    const bool is_model_away = following.stream.empty() && status.error().code == ErrorCode::NotFound;
    if (!was_there || !(is_break(status.error()) || is_model_away)) return fail(status.error());
    return Attempt{.why_broken = status.error()};
  }
  following.is_heard = true;
  EventParser parser(options_.limits.event_bytes_max);
  for (;;) {
    std::vector<ServerEvent> events;
    const ClientRequest::State state = request.state();
    WEFT_TRY_STATUS(parser.feed(request.take_body(), events));
    for (const ServerEvent& event : events) {
      WEFT_TRY_STATUS(take(following, event, on_text));
      if (is_cancelled_) return cancelled();
    }
    if (following.is_done) return Attempt{.is_done = true};
    if (state == ClientRequest::State::Broken) return Attempt{.why_broken = request.why_broken()};
    if (state == ClientRequest::State::Complete)
      return Attempt{
          .why_broken = {ErrorCode::Unavailable, to_string(options_.url) + ": the stream has no end"}};
    if (const Status more = wait(request, options_.limits.silence_deadline, "it says nothing any more");
        !more) {
      if (!is_break(more.error())) return fail(more.error());
      return Attempt{.why_broken = more.error()};
    }
  }
}

std::string fresh_key() {
  std::random_device device;
  std::string key = "weft";
  for (int i = 0; i < 4; ++i) key += "-" + std::to_string(device());
  return key;
}

Status LoopClient::pause(Duration time) {
  loop_.run_until(time, [this] { return is_cancelled_; });
  if (is_cancelled_) return cancelled();
  return {};
}

// Where nothing has come of an answer it is asked for anew: by then its service may have been started again.
// One that never took a request is no service yet, and one that hangs up each time is another one.
bool may_go_on(const Following& following) {
  if (!following.has_ids) return false;
  if (!following.stream.empty() || following.is_heard) return true;
  return following.unanswered > 0 && following.unanswered < kUnansweredMax;
}

Result<AnswerEnd> LoopClient::generate(GenerateRequest request, const Told& on_text) {
  is_cancelled_ = false;
  request.is_stream = true;
  const std::string path(path_of(request.kind)), body = render_request(request);
  const ClientLimits& limits = options_.limits;
  Following following;
  following.key = fresh_key();
  Duration delay = limits.retry_first;
  std::optional<Instant> gives_up;  // since the last event that was new
  for (;;) {
    const uint64_t seen = following.seen;
    const Request sent = ask(following, path, body);
    WEFT_TRY(const Attempt attempt, follow(following, *sent, on_text));
    if (attempt.is_done) return following.end;
    if (!may_go_on(following)) return fail(attempt.why_broken);
    if (following.seen != seen) {
      delay = limits.retry_first;
      gives_up.reset();
    }
    if (!gives_up) gives_up = loop_.now() + limits.retry_for;
    if (loop_.now() + delay > *gives_up) return fail(attempt.why_broken);
    ++following.end.breaks;
    WEFT_TRY_STATUS(pause(delay));
    delay = std::min(2 * delay, limits.retry_longest);
  }
}

}  // namespace

Result<std::unique_ptr<Client>> Client::make(net::Loop& loop, ClientOptions options) {
  const auto is_visible = [](char c) { return c > ' ' && c < '\x7f'; };
  if (!std::ranges::all_of(options.key, is_visible) || options.key.size() > 4096)
    return fail(ErrorCode::InvalidArgument,
                "the key holds what no key has: spaces, or characters beyond ASCII");
  std::shared_ptr<const ClientTls> tls;
  if (options.url.is_secure) {
    WEFT_TRY(tls, ClientTls::load(options.ca_file));
  }
  return std::unique_ptr<Client>(std::make_unique<LoopClient>(loop, std::move(options), std::move(tls)));
}

}  // namespace weft::web
