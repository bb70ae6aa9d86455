#include "web/request_parser.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>

#include "base/check.h"

namespace weft::web {

namespace {

namespace http = boost::beast::http;
using boost::beast::error_code;
using View = boost::beast::string_view;

RequestParser::Refusal head_too_large(const RequestLimits& limits) {
  return {431, "the head of a request may have " + std::to_string(limits.head_bytes_max) + " bytes and " +
                   std::to_string(limits.header_count_max) + " headers"};
}

RequestParser::Refusal refusal_of(const error_code& error, const RequestLimits& limits) {
  if (error == http::error::header_limit) return head_too_large(limits);
  if (error == http::error::body_limit)
    return {413, "the body of a request may have " + std::to_string(limits.body_bytes_max) + " bytes"};
  if (error == http::error::bad_version) return {505, "this port speaks HTTP/1.1"};
  return {400, "this is no request of HTTP/1.1: " + error.message()};
}

// Beast asserts that the last chunk comes with so many bytes at least, "0" and two ends of a line: whoever
// sends them one by one would end the process. Between the beginning of any chunk's header and the end
// of the message there are as many, so waiting for them holds nothing back.
constexpr size_t kChunkLineMin = 5;

// Beast's parser, whose results become a Request. What it lets pass and we do not is refused here.
class Grammar final : public http::basic_parser<true> {
 public:
  explicit Grammar(const RequestLimits& limits) : limits_(limits) {
    header_limit(static_cast<uint32_t>(limits.head_bytes_max));
    body_limit(limits.body_bytes_max);
    eager(false);
  }
  Request request{};
  std::optional<RequestParser::Refusal> refusal{};
  bool is_1_0 = false, expects_continue = false;

  bool may_take(size_t bytes) const {
    return bytes >= kChunkLineMin || !is_header_done() || !chunked() || chunk_left_ > 0;
  }

 private:
  void refuse(int status, std::string message, error_code& error) {
    refusal = {status, std::move(message)};
    error = http::error::bad_field;
  }

  void on_request_impl(http::verb, View method, View target, int version, error_code& error) override {
    is_1_0 = version == 10;
    request.method.assign(method.data(), method.size());
    if (target.size() > limits_.target_bytes_max)
      return refuse(414, "a target may have " + std::to_string(limits_.target_bytes_max) + " bytes", error);
    if (const auto split = split_target({target.data(), target.size()}, request); !split)
      refuse(400, split.error().message, error);
  }

  void on_field_impl(http::field, View name, View value, error_code& error) override {
    if (is_header_done()) return;  // a trailer, which nothing here asks for
    if (request.headers.size() == limits_.header_count_max) {
      refusal = head_too_large(limits_);
      error = http::error::header_limit;
      return;
    }
    request.headers.push_back(
        {lower_case({name.data(), name.size()}), std::string(value.data(), value.size())});
  }

  void on_header_impl(error_code& error) override {
    const auto hosts = std::ranges::count(request.headers, "host", &Header::name);
    if (hosts > 1 || (hosts == 0 && !is_1_0))
      return refuse(400, "a request of HTTP/1.1 names one host", error);
    const auto coding = request.header("transfer-encoding");
    if (coding && (!chunked() || is_1_0 || lower_case({coding->data(), coding->size()}) != "chunked"))
      return refuse(501, "this port understands no transfer encoding but 'chunked'", error);
    if (const auto wish = request.header("expect")) {
      if (lower_case({wish->data(), wish->size()}) != "100-continue")
        return refuse(417, "this port meets no expectation but '100-continue'", error);
      expects_continue = !is_1_0;
    }
  }

  size_t on_body_impl(View body, error_code&) override {
    request.body.append(body.data(), body.size());
    return body.size();
  }
  size_t on_chunk_body_impl(uint64_t, View body, error_code& error) override {
    chunk_left_ -= body.size();
    return on_body_impl(body, error);
  }
  void on_response_impl(int, View, int, error_code&) override {}
  void on_body_init_impl(const boost::optional<uint64_t>&, error_code&) override {}
  void on_chunk_header_impl(uint64_t size, View, error_code&) override { chunk_left_ = size; }
  void on_finish_impl(error_code&) override {}

  const RequestLimits limits_;
  uint64_t chunk_left_ = 0;  // of the chunk that is being read; 0: its header comes next
};

}  // namespace

struct RequestParser::Impl {
  explicit Impl(const RequestLimits& limits) : limits(limits), grammar(limits) {}
  const RequestLimits limits;
  Grammar grammar;
  State state = State::Head;
  bool has_begun = false;

  void refuse(Refusal refusal) {
    grammar.refusal = std::move(refusal);
    state = State::Refused;
  }
  // One step of the grammar; 0: it needs more, or is done.
  size_t step(std::string_view bytes);
};

size_t RequestParser::Impl::step(std::string_view bytes) {
  if (!grammar.may_take(bytes.size())) return 0;
  error_code error;
  const size_t taken = grammar.put(boost::asio::buffer(bytes.data(), bytes.size()), error);
  if (error && error != http::error::need_more) {
    refuse(grammar.refusal ? *grammar.refusal : refusal_of(error, limits));
    return 0;
  }
  if (grammar.is_done())
    state = State::Complete;
  else if (grammar.is_header_done())
    state = State::Body;
  // What is not taken is a line that has not ended.
  if (state != State::Complete && error == http::error::need_more &&
      bytes.size() - taken >= limits.head_bytes_max)
    refuse(head_too_large(limits));
  return taken;
}

RequestParser::RequestParser(const RequestLimits& limits) : impl_(std::make_unique<Impl>(limits)) {}
RequestParser::~RequestParser() = default;
RequestParser::RequestParser(RequestParser&&) noexcept = default;
RequestParser& RequestParser::operator=(RequestParser&&) noexcept = default;

size_t RequestParser::feed(std::string_view bytes) {
  size_t taken = 0;
  const State before = impl_->state;
  if (!bytes.empty()) impl_->has_begun = true;
  while (taken < bytes.size() && impl_->state != State::Complete && impl_->state != State::Refused) {
    const size_t step = impl_->step(bytes.substr(taken));
    taken += step;
    if (step == 0 || impl_->state != before) break;
  }
  return taken;
}

RequestParser::State RequestParser::state() const { return impl_->state; }
const Request& RequestParser::request() const { return impl_->grammar.request; }
Request RequestParser::take() {
  WEFT_CHECK(impl_->state == State::Complete);
  return std::move(impl_->grammar.request);
}
const RequestParser::Refusal& RequestParser::refusal() const {
  WEFT_CHECK(impl_->grammar.refusal.has_value());
  return *impl_->grammar.refusal;
}
size_t RequestParser::body_bytes() const {
  const Grammar& grammar = impl_->grammar;
  const auto announced = grammar.is_header_done() ? grammar.content_length() : boost::none;
  return std::max<size_t>(grammar.request.body.size(), announced ? *announced : 0);
}
bool RequestParser::has_begun() const { return impl_->has_begun; }
bool RequestParser::keeps_alive() const { return impl_->grammar.keep_alive(); }
bool RequestParser::is_http_1_0() const { return impl_->grammar.is_1_0; }
bool RequestParser::expects_continue() const { return impl_->grammar.expects_continue; }

}  // namespace weft::web
