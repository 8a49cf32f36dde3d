"""TensorFlow behind `learner.backend`. No other package of ga3c imports TensorFlow."""
