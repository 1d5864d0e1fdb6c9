// The loop of the thread.
#include "engine/store/io_worker.h"

#include <pthread.h>

#include <csignal>

namespace fovea {

IoWorker::IoWorker() {
  // Signals are for others, and one of them would be a file that grows beyond what the process may write (SIGXFSZ):
  // blocked, the write fails instead.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  thread_ = std::thread([this] { loop(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

IoWorker::~IoWorker() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    wake_.notify_one();
  }
  thread_.join();
}

void IoWorker::post(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  wake_.notify_one();
}

void IoWorker::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    if (stop_) return;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
  }
}

}  // namespace fovea
