#include "web/connection.h"

#include <algorithm>

namespace weft::web {

namespace {

using net::Io;

constexpr int kReadsPerTurn = 4;
constexpr int kTurnsPerPump = 4;      // of a writer that is as fast as its client
constexpr size_t kOutKept = 4 << 10;  // bytes of a buffer that an idle connection keeps

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void let_go(std::string& buffer) {
  buffer.clear();
  if (buffer.capacity() > kOutKept) buffer.shrink_to_fit();
}

}  // namespace

HttpConnection::HttpConnection(std::shared_ptr<Hub> hub, net::TransportPtr transport,
                               const net::AddressKey& from, std::shared_ptr<void> token)
    : from(from),
      hub_(std::move(hub)),
      transport_(std::move(transport)),
      token_(std::move(token)),
      began_(hub_->loop->now()),
      heard_(began_) {}

HttpConnection::~HttpConnection() = default;

void HttpConnection::begin() {
  transport_->set_events(this);
  // Little waits in the system: what a client does not read is seen here.
  transport_->set_unsent_max(64 << 10);
  set_deadline(Deadline::Head, hub_->limits.head_deadline);
  read_some();
}

bool HttpConnection::is_idle(Instant now) const {
  if (phase_ == Phase::Lingering) return true;
  if (phase_ != Phase::Reading || body_reserved_ > 0) return false;
  const bool has_begun = parser_ && parser_->has_begun();
  return now - heard_ >= (has_begun ? hub_->limits.slow_grace : hub_->limits.silent_grace);
}

// ---- reading

void HttpConnection::on_readable() {
  const auto self = shared_from_this();
  read_some();
}

void HttpConnection::read_some() {
  for (int i = 0; i < kReadsPerTurn && phase_ != Phase::Closed; ++i) {
    const Io io = transport_->read(hub_->scratch);
    if (io.state == Io::State::Blocked) break;
    if (io.state == Io::State::End) return leave(&ServerStats::gone);
    if (io.state == Io::State::Failed)
      return leave(phase_ == Phase::Answering ? &ServerStats::gone : &ServerStats::failed);
    take_in(text_of(std::span(hub_->scratch).first(io.size)));
  }
  if (phase_ != Phase::Closed) transport_->arm_read();
}

void HttpConnection::take_in(std::string_view bytes) {
  switch (phase_) {
    case Phase::Reading:
      if (input_.empty()) {
        const size_t taken = feed(bytes);
        if (phase_ == Phase::Reading || phase_ == Phase::Answering) input_ = bytes.substr(taken);
      } else {
        input_ += bytes;
        parse();
      }
      return;
    case Phase::Answering:
      input_ += bytes;
      if (input_.size() > hub_->limits.pipelined_bytes_max) leave(&ServerStats::gone);
      return;
    case Phase::Lingering:  // thrown away
    case Phase::Closed:
      return;
  }
}

void HttpConnection::parse() {
  if (phase_ == Phase::Reading) input_.erase(0, feed(input_));
  if (input_.empty()) let_go(input_);
}

// How many bytes were taken; those of the next request are not.
size_t HttpConnection::feed(std::string_view bytes) {
  if (!parser_) parser_.emplace(hub_->limits.request);
  size_t taken = 0;
  while (taken < bytes.size() && phase_ == Phase::Reading) {
    const bool was_silent = !parser_->has_begun();
    const RequestParser::State before = parser_->state();
    const size_t size = parser_->feed(bytes.substr(taken));
    taken += size;
    if (was_silent) {
      heard_ = hub_->loop->now();
      if (deadline_ == Deadline::Idle) set_deadline(Deadline::Head, hub_->limits.head_deadline);
    }
    on_progress();
    if (size == 0 && parser_ && parser_->state() == before) break;
  }
  return taken;
}

void HttpConnection::on_progress() {
  const RequestParser::State state = parser_->state();
  if (state == RequestParser::State::Refused) {
    hub_->count(&ServerStats::refused_requests);
    return refuse(parser_->refusal().status, parser_->refusal().message);
  }
  if (state == RequestParser::State::Head || !admit_head() || !reserve_body()) return;
  if (state == RequestParser::State::Complete) answer();
}

bool HttpConnection::admit_head() {
  if (is_head_admitted_) return true;
  is_head_admitted_ = true;
  if (const auto refusal = hub_->handler->on_head(parser_->request())) {
    refuse(*refusal);
    return false;
  }
  if (parser_->state() != RequestParser::State::Body) return true;
  set_deadline(Deadline::Body, hub_->limits.body_deadline);
  if (parser_->expects_continue()) {
    out_ += "HTTP/1.1 100 Continue\r\n\r\n";
    return flush();
  }
  return true;
}

bool HttpConnection::reserve_body() {
  const size_t more = std::max(parser_->body_bytes(), body_reserved_) - body_reserved_;
  if (hub_->body_bytes + more > hub_->limits.bodies_bytes_max) {
    hub_->count(&ServerStats::refused_requests);
    refuse(503, "too many requests are being read: try again later");
    return false;
  }
  hub_->body_bytes += more;
  body_reserved_ += more;
  return true;
}

// ---- answering

void HttpConnection::answer() {
  phase_ = Phase::Answering;
  set_deadline(Deadline::None, {});
  const bool is_http_1_0 = parser_->is_http_1_0();
  keeps_alive_ = parser_->keeps_alive() && !is_http_1_0 && !hub_->is_stopping;
  Request request = parser_->take();
  parser_.reset();
  request.remote = transport_->remote_address();
  const ServerLimits& limits = hub_->limits;
  exchange_ = std::make_shared<Exchange>(Exchange::Terms{.is_head = request.method == "HEAD",
                                                         .is_http_1_0 = is_http_1_0,
                                                         .keeps_alive = keeps_alive_,
                                                         .unsent_max = limits.stream_unsent_max,
                                                         .unsent_fair = limits.stream_unsent_fair,
                                                         .unsent_all_max = limits.unsent_bytes_max},
                                         hub_->unsent, [loop = hub_->loop, weak = weak_from_this()] {
                                           loop->post([weak] {
                                             if (const auto self = weak.lock()) self->pump();
                                           });
                                         });
  hub_->count(&ServerStats::requests);
  hub_->count(&ServerStats::open_requests);
  hub_->handler->on_request(std::move(request), Responder(exchange_));
  hub_->body_bytes -= std::exchange(body_reserved_, 0);
}

void HttpConnection::pump() {
  const auto self = shared_from_this();
  if (phase_ != Phase::Answering) return;
  // While it answers, only one thing makes its exchange so.
  if (exchange_->is_gone()) return leave(&ServerStats::too_slow);
  for (int turn = 0; turn < kTurnsPerPump; ++turn) {
    // What was written while this waited for the client is taken now: nobody tells of it again.
    if (out_begin_ == out_.size()) fill_out();
    const bool is_all = out_.empty();
    if (!flush()) return;
    if (is_last_taken_) return end_answer();
    if (!is_all) continue;
    return is_stream_ ? set_deadline(Deadline::Ping, hub_->limits.ping_every)
                      : set_deadline(Deadline::None, {});
  }
  hub_->loop->post([weak = weak_from_this()] {
    if (const auto waiting = weak.lock()) waiting->pump();
  });
}

void HttpConnection::fill_out() {
  Exchange::Output output = exchange_->take();
  if (output.is_stream && !is_stream_) hub_->count(&ServerStats::streams);
  is_stream_ = output.is_stream;
  is_cut_ = output.is_cut;
  is_last_taken_ = output.is_finished || output.is_cut;
  if (!output.bytes.empty()) sent_ = hub_->loop->now();
  out_ = std::move(output.bytes);
  out_begin_ = 0;
}

// False: not all has left, or the connection is closed.
bool HttpConnection::flush() {
  bool has_moved = false;
  while (out_begin_ < out_.size()) {
    const Io io = transport_->write(std::as_bytes(std::span(out_)).subspan(out_begin_));
    if (io.state == Io::State::Ready) {
      out_begin_ += io.size;
      has_moved = true;
      if (exchange_) exchange_->left(io.size);
      continue;
    }
    if (io.state != Io::State::Blocked) {
      leave(&ServerStats::gone);
      return false;
    }
    // What a client takes slowly is bounded by its bytes. A refusal has its own deadline.
    if (phase_ != Phase::Lingering && (has_moved || deadline_ != Deadline::Stall))
      set_deadline(Deadline::Stall, hub_->limits.stall_deadline);
    transport_->arm_write();
    return false;
  }
  let_go(out_);
  out_begin_ = 0;
  return true;
}

void HttpConnection::on_writable() {
  const auto self = shared_from_this();
  if (phase_ == Phase::Answering) return pump();
  if (flush() && phase_ == Phase::Lingering) linger();
}

void HttpConnection::end_answer() {
  hub_->count_down(&ServerStats::open_requests);
  exchange_.reset();
  is_last_taken_ = is_stream_ = is_head_admitted_ = false;
  if (!keeps_alive_ || is_cut_ || hub_->is_stopping) return linger();
  phase_ = Phase::Reading;
  heard_ = hub_->loop->now();
  set_deadline(Deadline::Idle, hub_->limits.idle_deadline);
  if (input_.empty()) return;
  // Others have their turn before the request that came with this one.
  set_deadline(Deadline::Head, hub_->limits.head_deadline);
  hub_->loop->post([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->parse();
  });
}

void HttpConnection::refuse(int status, const std::string& message) {
  Response response = hub_->handler->on_refused(status, message);
  if (status == 503) response.headers.push_back({"Retry-After", "1"});
  refuse(response);
}

// The last that this connection says: what comes behind the head may be anything.
void HttpConnection::refuse(const Response& response) {
  const bool is_head = parser_->request().method == "HEAD";
  hub_->body_bytes -= std::exchange(body_reserved_, 0);
  parser_.reset();
  out_ += render_response(response, /*keeps_alive=*/false, is_head);
  phase_ = Phase::Lingering;
  set_deadline(Deadline::Linger, hub_->limits.linger_deadline);
  if (flush()) linger();
}

// A socket that is closed with unread bytes in it resets the connection, and the client never sees the
// answer.
void HttpConnection::linger() {
  phase_ = Phase::Lingering;
  let_go(input_);
  set_deadline(Deadline::Linger, hub_->limits.linger_deadline);
  transport_->shut_write();
}

// ---- ends

void HttpConnection::leave(uint64_t ServerStats::*counter) {
  // One that leaves between requests does what it should.
  if (counter != &ServerStats::gone || phase_ == Phase::Answering) hub_->count(counter);
  close();
}

void HttpConnection::wind_up() {
  if (phase_ == Phase::Answering)
    keeps_alive_ = false;
  else
    close();
}

void HttpConnection::close() {
  if (phase_ == Phase::Closed) return;
  const auto self = shared_from_this();
  if (phase_ == Phase::Answering) hub_->count_down(&ServerStats::open_requests);
  hub_->count_down(&ServerStats::open_connections);
  phase_ = Phase::Closed;
  timer_.reset();
  transport_->close();
  token_.reset();
  hub_->body_bytes -= std::exchange(body_reserved_, 0);
  std::erase(hub_->connections, self);
  if (exchange_) exchange_->gone();
  exchange_.reset();
  // Whoever called this may be running in it.
  hub_->loop->post([self] {});
  if (hub_->is_stopping && hub_->connections.empty() && hub_->on_empty) hub_->on_empty();
}

// ---- time

// The timer is left alone where it comes early enough: tokens move a deadline far more often than it comes.
void HttpConnection::set_deadline(Deadline kind, Duration after) {
  deadline_ = kind;
  if (kind == Deadline::None) return;
  due_ = hub_->loop->now() + after;
  if (!timer_ || armed_for_ > due_) arm_timer();
}

void HttpConnection::arm_timer() {
  armed_for_ = due_;
  const Duration delay = std::max(due_ - hub_->loop->now(), Duration::zero());
  timer_ = hub_->loop->after(delay, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->on_timer();
  });
}

void HttpConnection::on_timer() {
  timer_.reset();
  if (deadline_ == Deadline::None) return;
  if (hub_->loop->now() < due_) return arm_timer();
  on_deadline();
}

void HttpConnection::on_deadline() {
  switch (deadline_) {
    case Deadline::None:
      return;
    case Deadline::Ping:
      return ping();
    case Deadline::Linger:
    case Deadline::Idle:
      return close();
    case Deadline::Head:
    case Deadline::Body:
    case Deadline::Stall:
      return leave(&ServerStats::timed_out);
  }
}

void HttpConnection::ping() {
  const Duration quiet = hub_->loop->now() - sent_;
  if (quiet < hub_->limits.ping_every) return set_deadline(Deadline::Ping, hub_->limits.ping_every - quiet);
  set_deadline(Deadline::Ping, hub_->limits.ping_every);
  if (exchange_) (void)exchange_->write(":\n\n");
}

}  // namespace weft::web
