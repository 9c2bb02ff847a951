// The table of the mappings, by the names in sparse_attn/mappings.
#pragma once
#include "projections.h"
#include "truncated.h"
#include "unnormalized.h"

template <class T> struct Map {
  const char *name;
  void (*forward)(Row<T> &);
  T (*backward)(Row<T> &);
};

#define SHARE(name, Type) {name, share_forward<T, Type>, share_backward<T, Type>}
#define ALONE(name, Type) {name, alone_forward<T, Type>, alone_backward<T, Type>}
#define SPARSE(name, how) \
  {name, sparsemax_forward<T, Rescale::how>, sparsemax_backward<T, Rescale::how>}
template <class T> using Sigsoftmax = Sigmoid<T, true>;
template <class T> using SigmoidOnly = Sigmoid<T, false>;

template <class T> const Map<T> *find_map(const char *name) {
  static const Map<T> maps[] = {
      SHARE("softmax", Softmax),
      SHARE("sigsoftmax", Sigsoftmax),
      SHARE("taylor-softmax", Taylor),
      SHARE("spherical-softmax", Spherical),
      SHARE("softmax-abs", SoftmaxAbs),
      SHARE("normalized-relu", Relu),
      SHARE("normalized-sigmoid", SigmoidOnly),
      SHARE("t-softmax", TSoftmax),
      SHARE("r-softmax", RSoftmax),
      SHARE("top-p-softmax", TopP),
      SHARE("threshold-softmax", Threshold),
      ALONE("sigmoid", Sigmoid1),
      ALONE("relu", Relu1),
      {"softpick", softpick_forward<T>, softpick_backward<T>},
      {"clipped-softmax", clipped_forward<T>, clipped_backward<T>},
      SPARSE("sparsemax", none),
      SPARSE("sparsegen", gen),
      SPARSE("sparsecone", cone),
      SPARSE("sparsehourglass", hourglass),
      {"entmax", entmax_forward<T>, entmax_backward<T>},
  };
  for (const Map<T> &map : maps)
    if (!std::strcmp(map.name, name)) return &map;
  return nullptr;
}
