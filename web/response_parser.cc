#include "web/response_parser.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <limits>
#include <vector>

#include "base/check.h"
#include "web/message.h"

namespace weft::web {

namespace {

namespace http = boost::beast::http;
using boost::beast::error_code;
using View = boost::beast::string_view;

// Beast asserts that the last chunk comes with so many bytes at least, "0" and two ends of a line: whoever
// sends them one by one would end the process. Between the beginning of any chunk's header and the end
// of the message there are as many, so waiting for them holds nothing back.
constexpr size_t kChunkLineMin = 5;

class ResponseGrammar final : public http::basic_parser<false> {
 public:
  explicit ResponseGrammar(const ResponseLimits& limits) : header_count_max_(limits.header_count_max) {
    header_limit(static_cast<uint32_t>(limits.head_bytes_max));
    // Whoever takes the body bounds it. Beast 1.74 takes boost::none for a limit of nothing.
    body_limit(std::numeric_limits<uint64_t>::max());
    eager(false);
  }
  int status = 0;
  std::vector<Header> headers{};
  std::string body{};

  bool may_take(size_t bytes) const {
    return bytes >= kChunkLineMin || !is_header_done() || !chunked() || chunk_left_ > 0;
  }

 private:
  void on_response_impl(int code, View, int, error_code&) override { status = code; }
  void on_field_impl(http::field, View name, View value, error_code& error) override {
    if (is_header_done()) return;  // a trailer
    if (headers.size() == header_count_max_) {
      error = http::error::header_limit;
      return;
    }
    headers.push_back({lower_case({name.data(), name.size()}), std::string(value.data(), value.size())});
  }
  size_t on_body_impl(View piece, error_code&) override {
    body.append(piece.data(), piece.size());
    return piece.size();
  }
  size_t on_chunk_body_impl(uint64_t, View piece, error_code& error) override {
    chunk_left_ -= piece.size();
    return on_body_impl(piece, error);
  }
  void on_request_impl(http::verb, View, View, int, error_code&) override {}
  void on_header_impl(error_code&) override {}
  void on_body_init_impl(const boost::optional<uint64_t>&, error_code&) override {}
  void on_chunk_header_impl(uint64_t size, View, error_code&) override { chunk_left_ = size; }
  void on_finish_impl(error_code&) override {}

  const size_t header_count_max_;
  uint64_t chunk_left_ = 0;  // of the chunk that is being read; 0: its header comes next
};

}  // namespace

struct ResponseParser::Impl {
  explicit Impl(const ResponseLimits& limits) : limits(limits) { grammar.emplace(limits); }
  const ResponseLimits limits;
  std::optional<ResponseGrammar> grammar;
  State state = State::Head;
  std::string waiting, fault;
  size_t interim = 0;  // responses of 1xx
  bool has_head = false;

  void refuse(std::string why) {
    fault = std::move(why);
    state = State::Refused;
  }
  size_t step(std::string_view bytes);
  void settle();
};

// What the grammar has read by now.
void ResponseParser::Impl::settle() {
  constexpr size_t kInterimMax = 16;
  if (!grammar->is_header_done()) return;
  const bool is_interim = grammar->status >= 100 && grammar->status < 200;
  if (!is_interim) {
    has_head = true;
    state = grammar->is_done() ? State::Complete : State::Body;
  } else if (++interim > kInterimMax) {
    refuse("the service sends one interim response after another");
  } else {
    grammar.emplace(limits);
  }
}

size_t ResponseParser::Impl::step(std::string_view bytes) {
  if (!grammar->may_take(bytes.size())) return 0;
  error_code error;
  const size_t taken = grammar->put(boost::asio::buffer(bytes.data(), bytes.size()), error);
  const bool needs_more = error == http::error::need_more;
  if (error && !needs_more) {
    refuse(error == http::error::header_limit ? "the head of the response is too long"
                                              : "this is no response of HTTP/1.1: " + error.message());
    return 0;
  }
  settle();
  // What is not taken is a line that has not ended.
  if (needs_more && state != State::Complete && bytes.size() - taken >= limits.head_bytes_max)
    refuse("the response has a line that is too long");
  return taken;
}

ResponseParser::ResponseParser(const ResponseLimits& limits) : impl_(std::make_unique<Impl>(limits)) {}
ResponseParser::~ResponseParser() = default;
ResponseParser::ResponseParser(ResponseParser&&) noexcept = default;
ResponseParser& ResponseParser::operator=(ResponseParser&&) noexcept = default;

void ResponseParser::feed(std::string_view bytes) {
  impl_->waiting += bytes;
  size_t taken = 0;
  const auto is_over = [&] { return impl_->state == State::Complete || impl_->state == State::Refused; };
  while (taken < impl_->waiting.size() && !is_over()) {
    const size_t step = impl_->step(std::string_view(impl_->waiting).substr(taken));
    if (step == 0) break;
    taken += step;
  }
  impl_->waiting.erase(0, is_over() ? impl_->waiting.size() : taken);
}

void ResponseParser::end() {
  if (impl_->state == State::Complete || impl_->state == State::Refused) return;
  error_code error;
  if (impl_->state == State::Body && impl_->waiting.empty()) impl_->grammar->put_eof(error);
  if (!error && impl_->grammar->is_done())
    impl_->state = State::Complete;
  else
    impl_->refuse("the connection ended within the response");
}

ResponseParser::State ResponseParser::state() const { return impl_->state; }
bool ResponseParser::has_head() const { return impl_->has_head; }
int ResponseParser::status() const { return impl_->grammar->status; }
std::optional<std::string_view> ResponseParser::header(std::string_view name) const {
  const auto& headers = impl_->grammar->headers;
  const auto at = std::ranges::find(headers, name, &Header::name);
  if (at == headers.end()) return {};
  return at->value;
}
std::string ResponseParser::take_body() { return std::exchange(impl_->grammar->body, {}); }
const std::string& ResponseParser::fault() const {
  WEFT_CHECK(impl_->state == State::Refused);
  return impl_->fault;
}

}  // namespace weft::web
