#include "web/exchange.h"

#include <algorithm>
#include <charconv>
#include <ctime>

namespace weft::web {

namespace {

// "Wed, 25 Nov 2026 16:00:00 GMT", whatever the locale.
std::string http_date() {
  static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  if (gmtime_r(&now, &utc) == nullptr) return "Thu, 01 Jan 1970 00:00:00 GMT";
  char clock[32];
  std::strftime(clock, sizeof(clock), "%Y %H:%M:%S GMT", &utc);
  char day[8];
  std::strftime(day, sizeof(day), "%d", &utc);
  return std::string(kDays[utc.tm_wday]) + ", " + day + " " + kMonths[utc.tm_mon] + " " + clock;
}

std::string head_of(int status, std::string_view content_type, bool keeps_alive) {
  std::string head = "HTTP/1.1 " + status_line(status) + "\r\nDate: " + http_date() + "\r\n";
  head.append("Content-Type: ").append(content_type).append("\r\nX-Content-Type-Options: nosniff\r\n");
  return head += keeps_alive ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
}

}  // namespace

std::string render_response(const Response& response, bool keeps_alive, bool is_head) {
  std::string out = head_of(response.status, response.content_type, keeps_alive);
  for (const Header& header : response.headers) out += header.name + ": " + header.value + "\r\n";
  out += "Content-Length: " + std::to_string(response.body.size()) + "\r\n\r\n";
  return is_head ? out : out += response.body;
}

Exchange::Exchange(const Terms& terms, std::shared_ptr<UnsentTotal> total, std::function<void()> wake)
    : terms_(terms), total_(std::move(total)), wake_(std::move(wake)) {}

Exchange::~Exchange() {
  const MutexLock lock(mutex_);
  total_->bytes -= unsent_;
}

bool Exchange::takes_wake() {
  if (is_woken_) return false;
  is_woken_ = true;
  return true;
}

void Exchange::append(std::string_view bytes) {
  pending_ += bytes;
  unsent_ += bytes.size();
  total_->bytes += bytes.size();
}

void Exchange::append_chunk(std::string_view bytes) {
  if (terms_.is_head || bytes.empty()) return;
  if (terms_.is_http_1_0) return append(bytes);  // it ends where the connection does
  char size[20];
  const auto end = std::to_chars(size, size + sizeof(size), bytes.size(), 16).ptr;
  append({size, end});
  append("\r\n");
  append(bytes);
  append("\r\n");
}

bool Exchange::is_over(size_t more) const {
  const size_t mine = unsent_ + more;
  return mine > terms_.unsent_max ||
         (mine > terms_.unsent_fair && total_->bytes + more > terms_.unsent_all_max);
}

void Exchange::end(std::function<void()>& released) {
  phase_ = Phase::Finished;
  released.swap(on_gone_);  // let go of without the lock
}

void Exchange::send(const Response& response) {
  std::function<void()> released;
  {
    const MutexLock lock(mutex_);
    if (phase_ != Phase::Begun || is_gone_) return;
    append(render_response(response, terms_.keeps_alive, terms_.is_head));
    end(released);
    if (!takes_wake()) return;
  }
  wake_();
}

void Exchange::start_stream() {
  {
    const MutexLock lock(mutex_);
    if (phase_ != Phase::Begun || is_gone_) return;
    phase_ = Phase::Streaming;
    is_stream_ = true;
    append(head_of(200, "text/event-stream; charset=utf-8", terms_.keeps_alive && !terms_.is_http_1_0));
    // The last is for proxies that would collect what should flow.
    append("Cache-Control: no-store\r\nX-Accel-Buffering: no\r\n");
    append(terms_.is_http_1_0 ? "\r\n" : "Transfer-Encoding: chunked\r\n\r\n");
    if (!takes_wake()) return;
  }
  wake_();
}

bool Exchange::write(std::string_view events) {
  bool is_written = false;
  {
    const MutexLock lock(mutex_);
    if (phase_ != Phase::Streaming || is_gone_ || is_too_slow_) return false;
    is_written = !is_over(events.size());
    if (is_written)
      append_chunk(events);
    else
      is_too_slow_ = true;
    // The loop may not take what waits for a long time: who is too slow is let go at once.
    if (!takes_wake() && is_written) return true;
  }
  wake_();
  return is_written;
}

void Exchange::finish() {
  std::function<void()> released;
  {
    const MutexLock lock(mutex_);
    if (phase_ != Phase::Streaming || is_gone_ || is_too_slow_) return;
    if (!terms_.is_http_1_0 && !terms_.is_head) append("0\r\n\r\n");
    end(released);
    if (!takes_wake()) return;
  }
  wake_();
}

void Exchange::abandon() {
  std::function<void()> released;
  bool is_unanswered = false;
  {
    const MutexLock lock(mutex_);
    if (phase_ == Phase::Finished || is_gone_) return;
    if (is_too_slow_) {
      released.swap(on_gone_);  // the loop closes it, for that reason and no other
      return;
    }
    is_unanswered = phase_ == Phase::Begun;
    if (!is_unanswered) {
      is_cut_ = true;
      end(released);
      if (!takes_wake()) return;
    }
  }
  if (is_unanswered)
    send({.status = 500,
          .content_type = "text/plain; charset=utf-8",
          .body = "nobody answered this request\n"});
  else
    wake_();
}

void Exchange::on_gone(std::function<void()> work) {
  {
    const MutexLock lock(mutex_);
    if (phase_ == Phase::Finished) return;
    if (!is_gone_) {
      on_gone_.swap(work);
      return;
    }
  }
  work();
}

bool Exchange::is_gone() const {
  const MutexLock lock(mutex_);
  return is_gone_ || is_too_slow_;
}

Exchange::Output Exchange::take() {
  const MutexLock lock(mutex_);
  is_woken_ = false;
  Output output{.bytes = {},
                .is_finished = phase_ == Phase::Finished && !is_cut_,
                .is_cut = is_cut_,
                .is_stream = is_stream_};
  output.bytes.swap(pending_);
  return output;
}

void Exchange::left(size_t bytes) {
  const MutexLock lock(mutex_);
  bytes = std::min(bytes, unsent_);  // "100 Continue" came from elsewhere
  unsent_ -= bytes;
  total_->bytes -= bytes;
}

void Exchange::gone() {
  std::function<void()> work;
  {
    const MutexLock lock(mutex_);
    is_gone_ = true;
    work.swap(on_gone_);
    pending_.clear();
    pending_.shrink_to_fit();
    total_->bytes -= unsent_;
    unsent_ = 0;
    if (phase_ == Phase::Finished) return;
  }
  if (work) work();
}

struct Responder::Hold {
  explicit Hold(std::shared_ptr<Exchange> exchange) : exchange(std::move(exchange)) {}
  ~Hold() { exchange->abandon(); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  const std::shared_ptr<Exchange> exchange;
};

Responder::Responder(std::shared_ptr<Exchange> exchange)
    : hold_(std::make_shared<Hold>(std::move(exchange))) {}
void Responder::send(const Response& response) const { hold_->exchange->send(response); }
void Responder::start_stream() const { hold_->exchange->start_stream(); }
bool Responder::write(std::string_view events) const { return hold_->exchange->write(events); }
void Responder::finish() const { hold_->exchange->finish(); }
void Responder::on_gone(std::function<void()> work) const { hold_->exchange->on_gone(std::move(work)); }
bool Responder::is_gone() const { return hold_->exchange->is_gone(); }

}  // namespace weft::web
