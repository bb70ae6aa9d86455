#include "cli/ui_views.h"

#include <atomic>

namespace weft::cli {

namespace {

// The broker away or hung is said on the page within seconds.
constexpr Duration kPageDeadline = std::chrono::seconds(6);

class ClientView final : public ui::BrokerView {
 public:
  ClientView(std::unique_ptr<BrokerAccess> access, const BrokerAddress& address)
      : access_(std::move(access)),
        address_(net::to_string(address.endpoint)),
        is_admin_(address.token.role == security::Role::Admin) {}

  std::string address() const override { return address_; }
  Result<ui::BrokerName> connect() override {
    if (!client_ || client_->lost()) {
      client_.reset();
      WEFT_TRY(client_, access_->connect());
    }
    return ui::BrokerName{address_, client_->broker().software, is_admin_};
  }
  void disconnect() override { client_.reset(); }

  Result<proto::JobList> jobs(uint32_t count) override {
    return ask<proto::JobList>(proto::ListJobs{.before = 0, .count = count});
  }
  Result<proto::JobStatus> job(proto::JobNumber number) override {
    return ask<proto::JobStatus>(proto::GetJob{number});
  }
  Result<proto::PeerList> peers() override { return ask<proto::PeerList>(proto::ListPeers{}); }
  Result<proto::LinkList> links() override {
    WEFT_TRY_STATUS(connect());
    if (client_->broker().minor < proto::kProtocolMinorOfProbes) return proto::LinkList{};
    return ask<proto::LinkList>(proto::ListLinks{});
  }
  Status stop(proto::JobNumber number) override {
    WEFT_TRY_STATUS(ask<proto::Done>(proto::StopJob{number}));
    return {};
  }
  Status resume(proto::JobNumber number) override {
    WEFT_TRY_STATUS(ask<proto::Done>(proto::ResumeJob{number}));
    return {};
  }
  Status events(proto::JobNumber number, uint64_t from_sequence,
                const std::function<void(const proto::JobEvent&)>& take) override;
  void interrupt() override {
    access_->loop().post([access = access_.get()] { access->set_interrupted(); });
  }

 private:
  // An answer that did not come may come yet, and be taken for the next: then there is no next on this
  // connection.
  template <typename T>
  Result<T> kept(Result<T> result) {
    if (!result && result.error().code == ErrorCode::Timeout) client_.reset();
    return result;
  }
  template <typename T>
  Result<T> ask(const proto::Message& question) {
    WEFT_TRY_STATUS(connect());
    return kept(client_->ask<T>(question, kPageDeadline));
  }
  Status read_events(proto::JobNumber number, const std::function<void(const proto::JobEvent&)>& take);

  std::unique_ptr<BrokerAccess> access_;
  const std::string address_;
  const bool is_admin_;
  std::unique_ptr<Client> client_;
};

Status ClientView::events(proto::JobNumber number, uint64_t from_sequence,
                          const std::function<void(const proto::JobEvent&)>& take) {
  WEFT_TRY_STATUS(connect());
  client_->send(proto::GetEvents{.job = number, .from_sequence = from_sequence, .follow = false});
  return kept(read_events(number, take));
}

Status ClientView::read_events(proto::JobNumber number,
                               const std::function<void(const proto::JobEvent&)>& take) {
  for (;;) {
    WEFT_TRY(const bool is_there, client_->wait(kPageDeadline));
    if (!is_there) return fail(ErrorCode::Timeout, "the broker does not say what has happened");
    while (const auto message = client_->take()) {
      if (const auto* event = std::get_if<proto::JobEvent>(&*message)) {
        if (event->job == number) take(*event);
      } else if (const auto* refusal = std::get_if<proto::Refusal>(&*message)) {
        return fail(refusal->code, refusal->message);
      } else if (std::holds_alternative<proto::EventsEnd>(*message)) {
        return {};
      }
    }
  }
}

class ServiceView final : public ui::ModelView {
 public:
  Status open(const ApiClientOptions& options) {
    WEFT_TRY(client_, make_client(loop_, options));
    return {};
  }
  Result<std::vector<std::string>> models() override {
    WEFT_TRY_STATUS(check());
    return client_->models();
  }
  Status generate(const web::GenerateRequest& request,
                  const std::function<bool(const std::string& text)>& on_text) override {
    WEFT_TRY_STATUS(check());
    WEFT_TRY_STATUS(client_->generate(request, [&](const std::string& text) {
      if (!on_text(text)) client_->cancel();
    }));
    return {};
  }
  void interrupt() override {
    is_interrupted_ = true;
    loop_.post([this] { client_->cancel(); });
  }

 private:
  Status check() const {
    if (is_interrupted_) return fail(ErrorCode::Cancelled, "the page is closing");
    return {};
  }

  net::Loop loop_;
  std::unique_ptr<web::Client> client_;
  std::atomic<bool> is_interrupted_ = false;
};

}  // namespace

std::shared_ptr<ui::BrokerView> make_broker_view(std::unique_ptr<BrokerAccess> access,
                                                 const BrokerAddress& address) {
  return std::make_shared<ClientView>(std::move(access), address);
}

Result<std::shared_ptr<ui::ModelView>> make_model_view(const ApiClientOptions& options) {
  auto view = std::make_shared<ServiceView>();
  WEFT_TRY_STATUS(view->open(options));
  return std::shared_ptr<ui::ModelView>(std::move(view));
}

}  // namespace weft::cli
